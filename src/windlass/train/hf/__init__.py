"""Conversion of models from and to Hugging Face files, without transformers."""
