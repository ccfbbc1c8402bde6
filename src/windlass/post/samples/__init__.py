"""Samples on disk: the log of a run, its records, and what reads them."""
