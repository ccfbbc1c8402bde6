"""Replicas whose user process runs in a container."""
