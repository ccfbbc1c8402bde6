"""Trial schedulers, which decide which trials run, stop, pause or are cloned. All are pure.

    from windlass.tune.schedulers import ASHAScheduler, PopulationBasedTraining

`SweepScheduler` is the protocol; subclass `FIFO` for your own algorithm.
"""

from typing import TYPE_CHECKING

from windlass.core.lazy import lazy_names
from windlass.tune.schedulers.protocol import CONTINUE, NOOP, ScheduledSweep, SchedulerDecision, SweepScheduler, Verdict

if TYPE_CHECKING:
    from windlass.tune.schedulers.async_hyperband import AsyncHyperBandScheduler
    from windlass.tune.schedulers.async_hyperband import AsyncHyperBandScheduler as ASHAScheduler
    from windlass.tune.schedulers.fifo import FIFO
    from windlass.tune.schedulers.fifo import FIFO as FIFOScheduler  # noqa: N811 - a class
    from windlass.tune.schedulers.fifo import FIFO as TrialScheduler  # noqa: N811 - a class
    from windlass.tune.schedulers.hb_bohb import HyperBandForBOHB
    from windlass.tune.schedulers.hyperband import HyperBandScheduler
    from windlass.tune.schedulers.median_stopping_rule import MedianStoppingRule
    from windlass.tune.schedulers.pb2 import PB2
    from windlass.tune.schedulers.pbt import PopulationBasedTraining
    from windlass.tune.schedulers.population_based.policy import read_policy
    from windlass.tune.schedulers.population_based.replay import PopulationBasedTrainingReplay
    from windlass.tune.schedulers.registry import create_scheduler
    from windlass.tune.schedulers.resource_changing_scheduler import (
        DistributeResources,
        DistributeResourcesToTopJob,
        ResourceChangingScheduler,
    )
else:  # a sweep needs one of them, and some need numpy
    __getattr__ = lazy_names(
        __name__,
        {
            "windlass.tune.schedulers.async_hyperband": (
                "AsyncHyperBandScheduler as ASHAScheduler",
                "AsyncHyperBandScheduler",
            ),
            "windlass.tune.schedulers.fifo": (
                "FIFO",
                "FIFO as FIFOScheduler",
                "FIFO as TrialScheduler",
            ),
            "windlass.tune.schedulers.hb_bohb": ("HyperBandForBOHB",),
            "windlass.tune.schedulers.hyperband": ("HyperBandScheduler",),
            "windlass.tune.schedulers.median_stopping_rule": ("MedianStoppingRule",),
            "windlass.tune.schedulers.pb2": ("PB2",),
            "windlass.tune.schedulers.pbt": ("PopulationBasedTraining",),
            "windlass.tune.schedulers.population_based.policy": ("read_policy",),
            "windlass.tune.schedulers.population_based.replay": ("PopulationBasedTrainingReplay",),
            "windlass.tune.schedulers.registry": ("create_scheduler",),
            "windlass.tune.schedulers.resource_changing_scheduler": (
                "DistributeResources",
                "DistributeResourcesToTopJob",
                "ResourceChangingScheduler",
            ),
        },
    )

__all__ = [
    "CONTINUE",
    "FIFO",
    "NOOP",
    "PB2",
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "DistributeResources",
    "DistributeResourcesToTopJob",
    "FIFOScheduler",
    "HyperBandForBOHB",
    "HyperBandScheduler",
    "MedianStoppingRule",
    "PopulationBasedTraining",
    "PopulationBasedTrainingReplay",
    "ResourceChangingScheduler",
    "ScheduledSweep",
    "SchedulerDecision",
    "SweepScheduler",
    "TrialScheduler",
    "Verdict",
    "create_scheduler",
    "read_policy",
]
