"""Which trials no other one beats in every metric."""

from __future__ import annotations

import math
from collections.abc import Sequence

from windlass.tune.controller.journal.history import History, TrialHistory
from windlass.tune.results.scores import check_mode, score
from windlass.tune.searchers import pareto

__all__ = ["front_of"]


def front_of(history: History, metrics: Sequence[str], modes: Sequence[str], scope: str = "last") -> list[TrialHistory]:
    """The front of trials with finite scores, sorted by the first metric, best first; equal points all stay.

    Raises:
        MetricError: a mode is unknown (`sweep-metric`).
    """
    signs = [1.0 if check_mode(mode) == "min" else -1.0 for mode in modes]
    points: list[tuple[tuple[float, ...], TrialHistory]] = []
    for trial in history.trials.values():
        values = [score(trial, metric, mode, history, scope) for metric, mode in zip(metrics, modes, strict=True)]
        if all(isinstance(value, int | float) and math.isfinite(value) for value in values):
            place = tuple(sign * value for sign, value in zip(signs, values, strict=True))
            points.append((place, trial))
    points.sort(key=lambda point: point[0])
    return [points[index][1] for index in pareto.pareto_front([place for place, _ in points])]
