"""The physics, a leaf that imports nothing of ours: hardware, model shapes and bounds."""
