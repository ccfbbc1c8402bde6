"""Staging of a run: checkout, environment, image, prepared data."""
