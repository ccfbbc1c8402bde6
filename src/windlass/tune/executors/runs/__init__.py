"""Executor that runs trials as windlass runs."""
