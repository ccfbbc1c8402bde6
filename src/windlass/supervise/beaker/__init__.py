"""Replicas that run on Beaker."""
