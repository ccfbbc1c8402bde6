"""Conversion of a mason command line to an experiment for any site."""
