"""Comparison of checkpoints and of losses of two runs."""
