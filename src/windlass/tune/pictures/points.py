"""Data for pictures: trials with a score, and their tooltips."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from windlass.tune.controller.journal.history import History, TrialHistory
from windlass.tune.results.columns import flatten
from windlass.tune.results.errors import BestTrialError, MetricError
from windlass.tune.results.scores import check_mode, metric_names, score
from windlass.tune.results.why import format_value

__all__ = ["PlotObjective", "PlottedTrial", "is_log", "objective_of", "points_of", "tip_of"]

_LOG_SPAN = 30.0


@dataclass(frozen=True, slots=True)
class PlotObjective:
    """Metric that a picture shows, and its direction."""

    metric: str
    is_max: bool

    @property
    def mode(self) -> str:
        """Direction of the metric, `max` or `min`."""
        return "max" if self.is_max else "min"

    def best(self, one: float, other: float) -> float:
        """Return the better of two values."""
        return max(one, other) if self.is_max else min(one, other)


@dataclass(frozen=True, slots=True)
class PlottedTrial:
    """Trial with its score, which is finite."""

    trial: TrialHistory
    value: float

    @property
    def values(self) -> dict[str, Any]:
        """Sampled values of the trial, flat."""
        return self.trial.assigned or flatten(self.trial.config)


def objective_of(history: History, metric: str = "", mode: str = "") -> PlotObjective:
    """Return the metric to draw: the given one, else the sweep's first, else the only one that was reported.

    Raises:
        MetricError: none of these exists (`unknown-metric`).
    """
    names = metric_names(history.trials.values())
    own = dict(zip(history.objectives.metrics, history.objectives.is_max, strict=True))
    found = metric or next(iter(own), "") or history.half.metric or (names[0] if len(names) == 1 else "")
    if not found:
        raise MetricError(
            "the sweep has no metric, and none was given", hint=f"reported: {', '.join(names) or 'nothing'}"
        )
    return PlotObjective(found, check_mode(mode) == "max" if mode else own.get(found, history.half.mode == "max"))


def points_of(history: History, objective: PlotObjective, scope: str = "last") -> list[PlottedTrial]:
    """Return the trials with a finite score, in the order in which they were suggested.

    Raises:
        BestTrialError: no trial has one (`sweep-no-best`).
    """
    points = []
    for trial in history.trials.values():
        value = score(trial, objective.metric, objective.mode, history, scope)
        if isinstance(value, int | float) and math.isfinite(value):
            points.append(PlottedTrial(trial, float(value)))
    if not points:
        names = metric_names(history.trials.values())
        raise BestTrialError(
            f"no trial reported a finite value for {objective.metric!r}",
            hint=f"reported: {', '.join(names) or 'nothing'}",
        )
    return points


def tip_of(trial: TrialHistory, **facts: Any) -> str:
    """Return the text of a trial's tooltip."""
    values = trial.assigned or flatten(trial.config)
    pairs = {**facts, **values}
    width = max(map(len, pairs), default=0)
    return "\n".join(
        [f"trial {trial.id}", *(f"{name:<{width}}  {format_value(value)}" for name, value in pairs.items())]
    )


def is_log(values: list[float]) -> bool:
    """Return whether positive numbers span a range that needs a logarithmic axis."""
    return bool(values) and min(values) > 0 and max(values) / min(values) >= _LOG_SPAN
