"""Stoppers, which see every result and stop trials or the whole sweep.

stopper = as_stopper({"training_iteration": 10})
stopper("00000", {"training_iteration": 10})    # True
"""

from windlass.tune.stopper.limits import (
    CombinedStopper,
    FunctionStopper,
    MaximumIterationStopper,
    MetricStopper,
    NoopStopper,
    TimeoutStopper,
)
from windlass.tune.stopper.plateaus import ExperimentPlateauStopper, TrialPlateauStopper
from windlass.tune.stopper.protocol import Stopper

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
]
