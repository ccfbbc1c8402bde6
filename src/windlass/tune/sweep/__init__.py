"""Sweeps declared in experiment files: controller, head, and ways to find and control them."""
