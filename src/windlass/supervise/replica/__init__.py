"""Replica: its supervisor and the user's process below it."""
