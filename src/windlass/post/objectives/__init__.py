"""Objectives: losses of token rows and log-probabilities, as sums that the train module divides by global weights."""
