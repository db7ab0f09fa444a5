"""UNDERSTANDING: metrics, intervals, validity, knee, goodput and the gate, derived from records."""
