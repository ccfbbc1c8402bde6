"""A launch of gantry as an experiment for any place."""
