"""Verbs for users of other launchers."""
