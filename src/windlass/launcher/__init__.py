"""Launching, reconciling, following, stopping and retrying runs. No windlass process has to keep running."""
