"""Verbs that only read runs."""
