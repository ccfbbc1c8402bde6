"""Modules that a trainer drives: any model with a loss, or a language model."""
