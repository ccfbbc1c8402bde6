"""Dataclasses that describe an experiment, which a user writes in a file or in Python."""

from __future__ import annotations

from windlass.spec.command import Command
from windlass.spec.data import DataSource
from windlass.spec.env import Env, SecretUse
from windlass.spec.experiment import Experiment
from windlass.spec.image import Image, ImageVariant
from windlass.spec.limits import Best, Context, KeptCheckpoints, Limit, Retain, Retry
from windlass.spec.sweep import KeptBySweep, Sweep, SweepLimits
from windlass.spec.task import BestCheckpoint, Bundle, Checkpoints, Evaluate, Gpus, Stall, Task

__all__ = [
    "Best",
    "BestCheckpoint",
    "Bundle",
    "Checkpoints",
    "Command",
    "Context",
    "DataSource",
    "Env",
    "Evaluate",
    "Experiment",
    "Gpus",
    "Image",
    "ImageVariant",
    "KeptBySweep",
    "KeptCheckpoints",
    "Limit",
    "Retain",
    "Retry",
    "SecretUse",
    "Stall",
    "Sweep",
    "SweepLimits",
    "Task",
]
