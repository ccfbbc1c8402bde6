"""Replica: its supervisor, and the user's process that it runs."""
