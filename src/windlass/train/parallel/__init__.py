"""Processes and meshes, and the one plan by which a model is spread over them."""
