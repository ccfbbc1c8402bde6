"""Text to files of tokens, once."""
