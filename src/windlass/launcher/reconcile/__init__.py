"""Comparison of a run's record with its jobs, and actions on the differences."""
