"""One adapter an API; each talks to an engine and returns instants and counts."""
