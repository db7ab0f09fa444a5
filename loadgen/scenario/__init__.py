"""WHAT to send: a scenario and a seed become a complete, hashed schedule before the run."""
