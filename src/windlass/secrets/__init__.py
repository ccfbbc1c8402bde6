"""Secrets: stores for their values, and delivery to runs."""
