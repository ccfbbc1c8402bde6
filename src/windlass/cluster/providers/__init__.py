"""Providers of machines: one folder each, with the same file names in it."""
