"""Containers on this machine, run by docker or podman."""
