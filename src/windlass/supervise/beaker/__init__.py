"""Replica on Beaker."""
