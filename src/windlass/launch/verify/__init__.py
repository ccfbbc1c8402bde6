"""Verification of a run: compare it with its record, or execute it again."""
