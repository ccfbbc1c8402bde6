"""Conversion of a gantry launch to an experiment for any site."""
