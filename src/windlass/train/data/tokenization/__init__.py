"""Tokenization of text into cached token files."""
