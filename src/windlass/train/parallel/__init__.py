"""Processes, meshes, and the distribution of a model over them."""
