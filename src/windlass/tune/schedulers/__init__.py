"""Trial schedulers: who goes on, who stops, who waits, who becomes a clone. One algorithm per file, all pure.

    from windlass.tune.schedulers import ASHA, FIFO, PopulationBasedTraining

`SweepScheduler` is the protocol; subclass `FIFO` for an algorithm of your own.
"""

from windlass.tune.schedulers.protocol import CONTINUE, NOOP, ScheduledSweep, SchedulerDecision, SweepScheduler, Verdict

# Looked up when first used: a sweep needs one of them, and some need numpy.
_HOMES = {
    "ASHA": ("registry", "ASHA"),
    "ASHAScheduler": ("async_hyperband", "AsyncHyperBandScheduler"),
    "AsyncHyperBandScheduler": ("async_hyperband", "AsyncHyperBandScheduler"),
    "DistributeResources": ("resource_allocation", "DistributeResources"),
    "DistributeResourcesToTopJob": ("resource_allocation", "DistributeResourcesToTopJob"),
    "FIFO": ("fifo", "FIFO"),
    "FIFOScheduler": ("fifo", "FIFO"),
    "HyperBandForBOHB": ("hb_bohb", "HyperBandForBOHB"),
    "HyperBandScheduler": ("hyperband", "HyperBandScheduler"),
    "MedianStoppingRule": ("median_stopping_rule", "MedianStoppingRule"),
    "PB2": ("pb2", "PB2"),
    "PopulationBasedTraining": ("pbt", "PopulationBasedTraining"),
    "PopulationBasedTrainingReplay": ("population_based.replay", "PopulationBasedTrainingReplay"),
    "PromotionASHA": ("asha_promotion", "PromotionASHA"),
    "ResourceChangingScheduler": ("resource_changing_scheduler", "ResourceChangingScheduler"),
    "TrialScheduler": ("fifo", "FIFO"),
    "check_pairing": ("registry", "check_pairing"),
    "create_scheduler": ("registry", "create_scheduler"),
    "from_settings": ("registry", "from_settings"),
    "read_policy": ("population_based.policy", "read_policy"),
}
__all__ = [
    "ASHA",
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
    "PromotionASHA",
    "ResourceChangingScheduler",
    "ScheduledSweep",
    "SchedulerDecision",
    "SweepScheduler",
    "TrialScheduler",
    "Verdict",
    "check_pairing",
    "create_scheduler",
    "from_settings",
    "read_policy",
]


def __getattr__(name: str) -> object:
    import importlib  # lazy: every worker imports the packages above

    if name not in _HOMES:
        raise AttributeError(f"module 'windlass.tune.schedulers' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(importlib.import_module(f"windlass.tune.schedulers.{module}"), attribute)
    globals()[name] = value
    return value


def __dir__() -> "list[str]":
    return sorted({*globals(), *__all__})
