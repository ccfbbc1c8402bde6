"""Executors of trials, which share one protocol (`protocol.py`), and code common to all workers."""
