"""RECORDING: instants and counts go to a run folder as they happen."""
