"""A decoder for all families, its presets, and its cost."""
