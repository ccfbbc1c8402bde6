"""Versions of weights, from the learner to engines."""
