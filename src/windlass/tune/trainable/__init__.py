"""Trainables, which trials run: a class with steps, or a function that reports."""

from windlass.tune.trainable.checkpoint import Checkpoint
from windlass.tune.trainable.class_api import Trainable
from windlass.tune.trainable.session import TrialContext, get_checkpoint, get_context, report

__all__ = ["Checkpoint", "Trainable", "TrialContext", "get_checkpoint", "get_context", "report"]
