"""Evaluation of a model, during training and afterwards."""
