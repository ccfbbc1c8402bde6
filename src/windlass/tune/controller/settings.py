"""Settings of a sweep, in the plain JSON form in which the journal stores them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from windlass.tune.search.protocol import Objectives
from windlass.tune.trial import ONE_CPU, Resources

__all__ = ["Resume", "RetentionPolicy", "SweepSettings", "resources_from_data", "resources_to_data"]

FailFast = Literal[False, True, "raise"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPolicy:
    """Policy for which of a trial's checkpoints to keep: the best by score, and always the newest.

    Attributes:
        num_to_keep: how many to keep besides the newest; None keeps all.
        score_attribute: metric to score by; empty means that newer is better.
        order: `max` or `min`; NaN ranks lowest in both.
    """

    num_to_keep: int | None = None
    score_attribute: str = ""
    order: Literal["max", "min"] = "max"


Mode = Literal["skip", "resume", "restart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Actions on trials when a sweep is restored: skip, resume from the checkpoint, or restart.

    A skipped trial that is not finished counts as finished.
    """

    finished: Mode = "skip"
    unfinished: Mode = "resume"
    errored: Mode = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialGoal:
    """Metric without a mode, or mode without a metric.

    No decision uses it, and readers complete it.
    """

    metric: str = ""
    mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """Settings of one sweep.

    Attributes:
        half: the objective of which only the metric or only the mode was given.
        num_samples: number of samples of the space (times its grid); -1 samples until a limit is reached.
        max_concurrent: maximum number of running trials; 0 uses all of the executor's room.
        max_trials: maximum number of suggestions; 0 takes all that the searcher has.
        time_budget_s: total seconds that heads of the sweep may run; 0 for no limit.
        gpu_hours: GPUs times the hours that trials held them; 0 for no limit.
        max_cost: limit in the currency of `prices`; 0 for no limit.
        prices: price per unit and hour of a resource: `{"GPU": 2.5, "CPU": 0.04}`.
        max_failures: retries of a trial after its own errors; -1 for unlimited.
        max_interruptions: retries of a trial after lost workers and nodes; -1 for unlimited.
        fail_fast: end the sweep at the first failed trial (unfinished trials stay resumable); `raise` also raises it.
        resources: resources of every trial, or a function of its configuration.
        saves_at_end: stopped trials save first; for trainables that save on request.
        is_strict: raise an error if the first report lacks a metric that is needed.
    """

    name: str
    objectives: Objectives = field(default_factory=Objectives)
    half: PartialGoal = field(default_factory=PartialGoal)
    num_samples: int = 1
    max_concurrent: int = 0
    max_trials: int = 0
    seed: int = 0
    time_budget_s: float = 0.0
    gpu_hours: float = 0.0
    max_cost: float = 0.0
    prices: Mapping[str, float] = field(default_factory=dict)
    max_failures: int = 0
    max_interruptions: int = 50
    fail_fast: FailFast = False
    keep: RetentionPolicy = field(default_factory=RetentionPolicy)
    resources: Resources | Callable[[dict[str, Any]], Resources] = ONE_CPU
    saves_at_end: bool = False
    is_strict: bool = True

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form.

        A `resources` function is stored as its name, and must be passed again.
        """
        shape = self.resources
        return {
            **({"half": {"metric": self.half.metric, "mode": self.half.mode}} if self.half != PartialGoal() else {}),
            "num_samples": self.num_samples,
            "max_concurrent": self.max_concurrent,
            "max_trials": self.max_trials,
            "seed": self.seed,
            "time_budget_s": self.time_budget_s,
            "gpu_hours": self.gpu_hours,
            "max_cost": self.max_cost,
            "prices": dict(self.prices),
            "max_failures": self.max_failures,
            "max_interruptions": self.max_interruptions,
            "fail_fast": self.fail_fast,
            "keep": {
                "num_to_keep": self.keep.num_to_keep,
                "score_attribute": self.keep.score_attribute,
                "order": self.keep.order,
            },
            "resources": resources_to_data(shape) if isinstance(shape, Resources) else _name_of(shape),
            "saves_at_end": self.saves_at_end,
            "is_strict": self.is_strict,
        }

    @classmethod
    def from_data(cls, name: str, objectives: Mapping[str, Any], data: Mapping[str, Any]) -> SweepSettings:
        """Decode the output of `to_data`.

        A `resources` function becomes one CPU, and must be passed again.
        """
        known = {key: value for key, value in data.items() if key in cls.__slots__}
        known["keep"] = RetentionPolicy(**data["keep"])
        known["half"] = PartialGoal(**data.get("half", {}))
        shape = data["resources"]
        known["resources"] = ONE_CPU if isinstance(shape, str) else resources_from_data(shape)
        return cls(name=name, objectives=objectives_from_data(objectives), **known)


def objectives_to_data(objectives: Objectives) -> dict[str, Any]:
    """Return objectives in JSON form."""
    return {"metrics": list(objectives.metrics), "modes": ["max" if is_max else "min" for is_max in objectives.is_max]}


def objectives_from_data(data: Mapping[str, Any]) -> Objectives:
    """Decode the output of `objectives_to_data`."""
    return Objectives(metrics=tuple(data["metrics"]), is_max=tuple(mode == "max" for mode in data["modes"]))


def resources_to_data(resources: Resources) -> dict[str, Any]:
    """Return the resources of a trial in JSON form."""
    return {"bundles": [dict(bundle) for bundle in resources.bundles], "strategy": resources.strategy}


def resources_from_data(data: Mapping[str, Any]) -> Resources:
    """Decode the output of `resources_to_data`."""
    return Resources(bundles=tuple(dict(bundle) for bundle in data["bundles"]), strategy=data["strategy"])


def _name_of(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__qualname__)}"
