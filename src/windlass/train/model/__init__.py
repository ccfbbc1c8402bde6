"""Decoder for all model families, its presets and its cost."""
