"""Stoppers look at every result and end trials, or the whole sweep.

stopper = as_stopper({"training_iteration": 10})
stopper("00000", {"training_iteration": 10})    # True
"""

from windlass.tune.stoppers.limits import (
    CombinedStopper,
    FunctionStopper,
    MaximumIterationStopper,
    MetricStopper,
    NoopStopper,
    TimeoutStopper,
)
from windlass.tune.stoppers.plateaus import ExperimentPlateauStopper, TrialPlateauStopper
from windlass.tune.stoppers.protocol import Stopper
from windlass.tune.stoppers.registry import as_stopper, stopper_from, stopper_settings

__all__ = [
    "CombinedStopper",
    "ExperimentPlateauStopper",
    "FunctionStopper",
    "MaximumIterationStopper",
    "MetricStopper",
    "NoopStopper",
    "Stopper",
    "TimeoutStopper",
    "TrialPlateauStopper",
    "as_stopper",
    "stopper_from",
    "stopper_settings",
]
