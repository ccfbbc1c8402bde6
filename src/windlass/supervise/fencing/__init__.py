"""Processes that keep a replica running while its supervisor restarts, and stop it when it is cut off."""
