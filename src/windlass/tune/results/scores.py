"""Scores of trials (the newest, best or averaged value of a metric), the best trial, and the Pareto front.

Source: Ray Tune's documented scopes `last`, `all`, `avg`, `last-5-avg` and `last-10-avg`, with its arithmetic: `avg`
is a running mean whose weight is the report's `training_iteration`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from windlass.tune.controller.journal.history import History, TrialHistory
from windlass.tune.results.columns import AUTO_FILLED, is_nan_or_inf, is_number
from windlass.tune.results.errors import MetricError
from windlass.tune.results.rows import reports_of, rows_of
from windlass.tune.search import pareto

__all__ = ["MODES", "SCOPES", "best_trial", "check_mode", "front_of", "metric_names", "score", "summary"]

MODES = ("min", "max")
SCOPES = ("all", "last", "avg", "last-5-avg", "last-10-avg")
_WINDOWS = (5, 10)
_NOT_SCORES = frozenset({"trial_id", "experiment_id", "date", "timestamp", "pid", "hostname", "node_ip", "config"})


def check_mode(mode: str) -> str:
    """Return the mode; raise MetricError if it is invalid.

    Raises:
        MetricError: it is not `min` or `max` (`unknown-metric`).
    """
    if mode not in MODES:
        raise MetricError(f"mode {mode!r} is not one of min, max", hint="pass mode='min' or mode='max'")
    return mode


def summary(trial: TrialHistory, metric: str, history: History) -> dict[str, Any]:
    """Return a trial's values of a metric by scope, including `max` and `min`; empty if it never reported one."""
    found: dict[str, Any] = {}
    windows = {size: deque[Any](maxlen=size) for size in _WINDOWS}
    for iteration, value in _values(trial, metric, history):
        if not found:
            found = {"max": value, "min": value, "avg": value, "last": value}
        else:
            step = iteration or 1
            found["max"] = max(value, found["max"])
            found["min"] = min(value, found["min"])
            found["avg"] = 1 / step * (value + (step - 1) * found["avg"])
            found["last"] = value
        for size, window in windows.items():
            window.append(value)
            found[f"last-{size}-avg"] = value if len(window) == 1 else sum(window) / len(window)
    return found


def _values(trial: TrialHistory, metric: str, history: History) -> Iterator[tuple[int, Any]]:
    if metric in _NOT_SCORES:
        return
    rows = rows_of(trial, history) if metric in AUTO_FILLED else (report.metrics for report in reports_of(trial))
    for row in rows:
        if is_number(row.get(metric)):
            yield int(row.get("training_iteration") or 0), row[metric]


def score(trial: TrialHistory, metric: str, mode: str, history: History, scope: str = "last") -> Any:
    """Return a trial's value of a metric, or None if it has none.

    For scope `all`, this is the best value that it has reported.
    """
    return summary(trial, metric, history).get(mode if scope == "all" else scope)


def best_trial(
    history: History, *, metric: str, mode: str, scope: str, filter_nan_and_inf: bool
) -> TrialHistory | None:
    """Return the first trial with the best score, or None if no trial has a score.

    Raises:
        MetricError: unknown scope or mode (`unknown-metric`).
    """
    check_mode(mode)
    if scope not in SCOPES:
        raise MetricError(f"scope {scope!r} is not one of {', '.join(SCOPES)}", hint="use scope='last', the default")
    best: TrialHistory | None = None
    best_value: Any = None
    for trial in history.trials.values():
        value = score(trial, metric, mode, history, scope)
        if value is None or (filter_nan_and_inf and is_nan_or_inf(value)):
            continue
        if best is None or (best_value < value if mode == "max" else best_value > value):
            best, best_value = trial, value
    return best


def metric_names(trials: Iterable[TrialHistory]) -> list[str]:
    """Return the numeric metrics reported by users, in the order of their first appearance."""
    names: dict[str, None] = {}
    for trial in trials:
        if trial.last:
            own = trial.last.items()
            names.update((name, None) for name, value in own if is_number(value) and name not in AUTO_FILLED)
    return list(names)


def front_of(history: History, metrics: Sequence[str], modes: Sequence[str], scope: str = "last") -> list[TrialHistory]:
    """Return the Pareto front of trials with finite scores, sorted by the first metric, best first. Keeps ties.

    Raises:
        MetricError: a mode is unknown (`unknown-metric`).
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
