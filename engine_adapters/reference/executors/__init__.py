"""Executors: what carries out one engine step."""
