"""YAML 1.2 text to a document tree."""
