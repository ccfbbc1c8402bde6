"""Executors of trials behind one protocol (`protocol.py`), and the parts that workers of all kinds share."""
