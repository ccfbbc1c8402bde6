"""A run as one file, and back."""
