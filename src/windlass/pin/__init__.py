"""Pins: immutable references to code, environment and data, and the record of what ran."""
