"""Verbs that run something."""
