"""Modules that a trainer can train: any model with a loss, or a language model."""
