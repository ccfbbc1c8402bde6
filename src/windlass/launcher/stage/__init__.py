"""Staging of a run: its checkout, environment, image and prepared data."""
