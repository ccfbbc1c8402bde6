"""Importance of parameters: the fraction of the score's variance that each one explains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.core.extras import require
from windlass.core.phrases import count
from windlass.tune.controller.journal.history import History
from windlass.tune.results.columns import flatten
from windlass.tune.results.errors import BestTrialError, MetricError
from windlass.tune.results.scores import metric_names, score

__all__ = ["METHODS", "importances", "scored_points"]

METHODS = ("ranks", "fanova", "ped-anova")
_MAX_BINS = 8
_MIN_TRIALS = 4
_LOG_SPAN = 100.0


def importances(
    history: History, *, metric: str = "", mode: str = "", scope: str = "last", method: str = "ranks"
) -> dict[str, float]:
    """Return the fraction of the explained score due to each parameter, largest first; the fractions add up to 1.

    With `ranks` a parameter's share is the adjusted correlation ratio between its values (in up to eight bins of equal
    count) and the ranks of the scores. It considers each parameter alone, so parameters that matter only in combination get a low share.
    `fanova` and `ped-anova` are Optuna's evaluators on the same points.

    Args:
        metric: metric to explain; by default the sweep's first.
        mode: `min` or `max`; by default the sweep's.

    Raises:
        MetricError: no metric, or an unknown method (`unknown-metric`).
        BestTrialError: fewer than four trials have a finite score (`sweep-no-best`).
        PreconditionError: the method needs Optuna, which is not installed (`extra-missing`).

    Source: correlation ratio: Pearson 1903; adjustment: Kelley 1935 (epsilon squared). fANOVA: Hutter et al. 2014.
    PED-ANOVA: Watanabe et al. 2023.
    """
    if method not in METHODS:
        raise MetricError(
            f"method {method!r} is not one of {', '.join(METHODS)}", hint="use method='ranks', which needs no library"
        )
    points = scored_points(history, metric, mode, scope)
    if len(points) < _MIN_TRIALS:
        raise BestTrialError(
            f"{count(len(points), 'trial has', 'trials have')} a finite score; importance needs {_MIN_TRIALS}",
            hint=_reported(history),
        )
    names = [name for name in points[0][0] if len({repr(values.get(name)) for values, _ in points}) > 1]
    raw = _by_ranks(points, names) if method == "ranks" else _by_optuna(points, names, method)
    total = sum(raw.values())
    shares = {name: value / total if total > 0 else 0.0 for name, value in raw.items()}
    return dict(sorted(shares.items(), key=lambda item: (-item[1], item[0])))


def scored_points(
    history: History, metric: str = "", mode: str = "", scope: str = "last"
) -> list[tuple[dict[str, Any], float]]:
    """Return the sampled values and the score (less is better) of each trial with a finite score.

    Raises:
        MetricError: no metric is named (`unknown-metric`).
    """
    objectives = history.objectives
    name = metric or (objectives.metrics[0] if objectives.metrics else "")
    if not name:
        raise MetricError("the sweep has no metric, and none was given", hint=_reported(history))
    own = dict(zip(objectives.metrics, ("max" if up else "min" for up in objectives.is_max), strict=True)).get(
        name, "min"
    )
    way = mode or own
    points = []
    for trial in history.trials.values():
        value = score(trial, name, way, history, scope)
        if isinstance(value, int | float) and math.isfinite(value):
            values = trial.assigned or flatten(trial.config)
            points.append((dict(values), -float(value) if way == "max" else float(value)))
    return points


def _reported(history: History) -> str:
    names = metric_names(history.trials.values())
    return f"reported: {', '.join(names)}" if names else "no trial has reported a number yet"


# ------------------------------------------------------------------------------------------------------------ ranks


def _by_ranks(points: Sequence[tuple[Mapping[str, Any], float]], names: Sequence[str]) -> dict[str, float]:
    ranks = _ranks([value for _, value in points])
    return {name: _explained(_groups([values.get(name) for values, _ in points]), ranks) for name in names}


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 0; equal values share their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] == values[order[first]]:
            last += 1
        for place in order[first : last + 1]:
            ranks[place] = (first + last) / 2
        first = last + 1
    return ranks


def _groups(values: Sequence[Any]) -> list[int]:
    """Assign values to bins: if they are many distinct numbers, to bins of equal count, otherwise by value."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    distinct = {repr(value) for value in values}
    if len(numbers) < len(values) or len(distinct) <= _MAX_BINS:
        labels = {label: place for place, label in enumerate(sorted(distinct))}
        return [labels[repr(value)] for value in values]
    num_bins = max(2, min(_MAX_BINS, round(math.sqrt(len(values)))))
    return [min(int(rank * num_bins / len(values)), num_bins - 1) for rank in _ranks(numbers)]


def _explained(groups: Sequence[int], ranks: Sequence[float]) -> float:
    """Return the adjusted fraction of the ranks' variance that is between groups, or 0 if not above chance."""
    num, mean = len(ranks), sum(ranks) / len(ranks)
    total = sum((rank - mean) ** 2 for rank in ranks)
    members: dict[int, list[float]] = {}
    for group, rank in zip(groups, ranks, strict=True):
        members.setdefault(group, []).append(rank)
    if total <= 0 or num <= len(members):
        return 0.0
    within = sum(sum((rank - sum(own) / len(own)) ** 2 for rank in own) for own in members.values())
    return max(0.0, 1.0 - within / total * (num - 1) / (num - len(members)))


# ----------------------------------------------------------------------------------------------------------- Optuna


def _by_optuna(
    points: Sequence[tuple[Mapping[str, Any], float]], names: Sequence[str], method: str
) -> dict[str, float]:
    message = f"method {method!r} needs optuna, which is not installed"
    optuna = require("optuna", message, hint="pip install 'windlass[tune]', or use method='ranks'")  # lazy: 0.2 s
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    spaces = {name: _distribution(optuna, [values[name] for values, _ in points if name in values]) for name in names}
    study = optuna.create_study(direction="minimize")
    for values, value in points:
        params = {name: spaces[name][1](values[name]) for name in names if name in values}
        ways = {name: spaces[name][0] for name in params}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=ways, value=value))
    evaluators = optuna.importance
    evaluator = (
        evaluators.FanovaImportanceEvaluator(seed=0) if method == "fanova" else evaluators.PedAnovaImportanceEvaluator()
    )
    return {
        str(name): float(value) for name, value in evaluators.get_param_importances(study, evaluator=evaluator).items()
    }


def _distribution(optuna: Any, values: Sequence[Any]) -> tuple[Any, Any]:
    """Return a distribution that fits the values of a parameter, and the function that converts a value for it."""
    is_number = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if not is_number or not all(map(math.isfinite, values)):
        labels = sorted({repr(value) for value in values})
        return optuna.distributions.CategoricalDistribution(labels), repr
    low, high = min(values), max(values)
    is_log = low > 0 and high / low >= _LOG_SPAN
    if all(isinstance(value, int) for value in values):
        return optuna.distributions.IntDistribution(low, high, log=is_log), int
    return optuna.distributions.FloatDistribution(low, high, log=is_log), float
