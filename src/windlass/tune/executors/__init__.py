"""Executors of trials, which share one protocol (`protocol.py`), and the code that all workers use."""
