"""Trainables, which trials run: a class with steps, or a function that reports."""

from windlass.tune.trainable.class_api import Trainable

__all__ = ["Trainable"]
