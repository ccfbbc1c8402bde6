"""Metrics to where people look at them."""
