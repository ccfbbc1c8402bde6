"""The dataclasses a user writes, in a file or in Python, and the way from the file to them."""

from __future__ import annotations

from windlass.spec.command import Command
from windlass.spec.data import DATA_SCHEMES, DataSource
from windlass.spec.env import Env, SecretUse
from windlass.spec.experiment import Experiment
from windlass.spec.limits import Context, Limit, Retry
from windlass.spec.load import checked, load_experiment
from windlass.spec.task import Checkpoints, Gpus, Stall, Task

__all__ = [
    "DATA_SCHEMES",
    "Checkpoints",
    "Command",
    "Context",
    "DataSource",
    "Env",
    "Experiment",
    "Gpus",
    "Limit",
    "Retry",
    "SecretUse",
    "Stall",
    "Task",
    "checked",
    "load_experiment",
]
