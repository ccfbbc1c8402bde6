"""Clusters on virtual hosts."""
