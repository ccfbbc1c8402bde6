"""Comparison of two checkpoints, and of the losses of two runs."""
