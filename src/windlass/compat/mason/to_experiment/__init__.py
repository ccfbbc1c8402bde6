"""A mason command line as an experiment for any place."""
