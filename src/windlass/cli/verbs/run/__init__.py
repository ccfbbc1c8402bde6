"""Verbs that start or stop runs."""
