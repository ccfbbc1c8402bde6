"""Verbs, one module each, imported when called."""
