"""Sweeps declared in experiment files: controller and head, and ways to find and control them."""
