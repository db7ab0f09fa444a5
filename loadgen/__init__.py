"""Plans, drives and measures: scenario -> schedule -> generator -> records -> analysis."""
