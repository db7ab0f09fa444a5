"""SHOWING: figures, tables and self-contained pages drawn from a summary."""
