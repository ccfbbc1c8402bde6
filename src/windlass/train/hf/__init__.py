"""Conversion of models to and from Hugging Face files, without transformers."""
