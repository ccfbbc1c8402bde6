"""Secrets: stores of values, and their delivery to runs."""
