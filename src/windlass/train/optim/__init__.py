"""Optimizers, parameter groups, schedules, clipping, and the loss."""
