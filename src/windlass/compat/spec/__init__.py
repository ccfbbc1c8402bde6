"""Beaker's experiment spec v2: reading it, converting it to experiments, and writing it without loss.

Throughout `compat`, a spec is plain data with Beaker's keys.
"""
