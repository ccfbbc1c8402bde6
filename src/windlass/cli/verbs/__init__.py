"""Verbs, one module each, imported only when called."""
