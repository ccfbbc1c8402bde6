"""Verification of a run: comparison with its record, and re-execution."""
