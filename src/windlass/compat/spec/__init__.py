"""Beaker's experiment spec v2: reading, conversion to experiments, and lossless writing.

Throughout `compat`, a spec is plain data with Beaker's keys.
"""
