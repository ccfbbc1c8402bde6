"""One decoder for all families, its presets, and what it costs."""
