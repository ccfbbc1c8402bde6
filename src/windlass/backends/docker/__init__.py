"""Containers on this machine, by docker or podman."""
