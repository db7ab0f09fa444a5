"""The mock server: answers like an OpenAI server, with a timing that is asked for and a log of what it really was."""
