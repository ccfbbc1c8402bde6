"""Provenance of a run, as a graph and as pictures."""
