"""Optimisers, groups of parameters, schedules, clipping, and the loss."""
