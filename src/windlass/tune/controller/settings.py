"""Settings of a sweep as the journal keeps them: plain JSON, no objects."""

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
    """Checkpoints of a trial that are kept: the best by a score, and always the newest.

    Attributes:
        num_to_keep: how many besides the newest; None: all.
        score_attribute: a metric; empty: newer is better.
        order: `max` or `min`; NaN ranks lowest in both.
    """

    num_to_keep: int | None = None
    score_attribute: str = ""
    order: Literal["max", "min"] = "max"


Mode = Literal["skip", "resume", "restart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Action on trials of a restored sweep: skip, resume from the checkpoint, or restart.

    A skipped trial that is not finished counts as finished.
    """

    finished: Mode = "skip"
    unfinished: Mode = "resume"
    errored: Mode = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialGoal:
    """Metric without a mode, or mode without a metric: nothing is decided by it, and readers complete it."""

    metric: str = ""
    mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepSettings:
    """Settings of one sweep.

    Attributes:
        half: of the objectives, where only one of metric and mode was named.
        num_samples: how often the space is sampled (times its grid); -1: until a limit.
        max_concurrent: trials that run at once; 0: as many as the executor has room for.
        max_trials: suggestions in all; 0: as many as the searcher has.
        time_budget_s: seconds in which a head lives, over all heads of the sweep; 0: none.
        gpu_hours: GPUs times the hours that trials held them; 0: none.
        max_cost: in the currency of `prices`; 0: none.
        prices: per unit and hour of a resource: `{"GPU": 2.5, "CPU": 0.04}`.
        max_failures: retries of a trial after its own errors; -1: unlimited.
        max_interruptions: the same for lost workers and nodes.
        fail_fast: end the sweep at the first failed trial (what has not ended stays resumable); `raise`: and raise it.
        resources: of every trial, or a function of its configuration.
        saves_at_end: a trial that is stopped saves first; for trainables that save on request.
        is_strict: a metric that no trial has reported yet and the first report lacks is an error.
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
        """JSON form; a function of the configuration becomes its name and must be given again."""
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
        """Read back `to_data`; resources that were a function become one CPU, so give them again."""
        known = {key: value for key, value in data.items() if key in cls.__slots__}
        known["keep"] = RetentionPolicy(**data["keep"])
        known["half"] = PartialGoal(**data.get("half", {}))
        shape = data["resources"]
        known["resources"] = ONE_CPU if isinstance(shape, str) else resources_from_data(shape)
        return cls(name=name, objectives=objectives_from_data(objectives), **known)


def objectives_to_data(objectives: Objectives) -> dict[str, Any]:
    """The JSON form of objectives."""
    return {"metrics": list(objectives.metrics), "modes": ["max" if is_max else "min" for is_max in objectives.is_max]}


def objectives_from_data(data: Mapping[str, Any]) -> Objectives:
    """Read back `objectives_to_data`."""
    return Objectives(metrics=tuple(data["metrics"]), is_max=tuple(mode == "max" for mode in data["modes"]))


def resources_to_data(resources: Resources) -> dict[str, Any]:
    """The JSON form of a shape."""
    return {"bundles": [dict(bundle) for bundle in resources.bundles], "strategy": resources.strategy}


def resources_from_data(data: Mapping[str, Any]) -> Resources:
    """Read back `resources_to_data`."""
    return Resources(bundles=tuple(dict(bundle) for bundle in data["bundles"]), strategy=data["strategy"])


def _name_of(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__qualname__)}"
