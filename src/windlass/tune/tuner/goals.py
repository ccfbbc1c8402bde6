"""The goal of a sweep: its metrics and modes, which may be named in one place only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.core.errors import UsageError
from windlass.tune.searchers.protocol import Goal
from windlass.tune.tuner.configs import TuneConfig

__all__ = ["resolve_goal"]

Place = tuple[str, tuple[str, ...], tuple[str, ...]]
"""Who names metrics, their names, their modes."""


def resolve_goal(config: TuneConfig, scheduler: Any, searcher: Any) -> Goal:
    """What the sweep is for; empty where nothing names a metric.

    Raises:
        UsageError: two places name a metric (`metric-named-twice`; a searcher may say the same as TuneConfig), or one names it without a mode (`mode-missing`).
    """
    stated = ("TuneConfig", config.metrics, config.modes)
    searching, scheduling = _of_searcher(searcher), _of_scheduler(scheduler)
    naming = [place for place in (stated, searching, scheduling) if place[1] or place[2]]
    if not naming:
        return Goal()
    where, metrics, modes = naming[0]
    for other in naming[1:]:
        is_same = other[1:] == (tuple(metrics), tuple(modes))
        if (where == "TuneConfig" and other is scheduling) or (len(metrics) == 1 and not is_same):
            raise _twice(naming[0], other)
    return _goal(where, metrics, modes)


def _twice(first: Place, other: Place) -> UsageError:
    names = " and ".join(f"{place} ({', '.join(said) or 'a mode'})" for place, said, _ in (first, other))
    hint = f"name metric and mode in TuneConfig alone, and leave them out of {other[0]}"
    return UsageError(f"two places name the metric: {names}", hint=hint, code="metric-named-twice")


def _goal(where: str, metrics: Sequence[str], modes: Sequence[str]) -> Goal:
    if not metrics:
        message = f"{where} says mode={modes[0]!r} of no metric"
        raise UsageError(message, hint="add metric='loss', say", code="metric-not-named")
    if not modes:
        message = f"{where} names the metric {metrics[0]!r} without a mode"
        raise UsageError(message, hint="add mode='min' or mode='max'", code="mode-missing")
    each = modes if len(modes) == len(metrics) else [modes[0]] * len(metrics)
    return Goal(metrics=tuple(metrics), is_max=tuple(mode == "max" for mode in each))


def _of_searcher(searcher: Any) -> Place:
    from windlass.tune.searchers.registry import own_goal  # lazy: plain search has no goal of its own

    inner = getattr(searcher, "searcher", searcher)
    plain = type(searcher).__name__ == "BasicVariantGenerator"
    goal = None if plain else own_goal(searcher)
    if goal is None:
        return type(inner).__name__, (), ()
    return type(inner).__name__, goal.metrics, tuple("max" if is_max else "min" for is_max in goal.is_max)


def _of_scheduler(scheduler: Any) -> Place:
    inner = getattr(scheduler, "base_scheduler", scheduler)
    modes = () if inner.mode is None or inner.metric is None else (inner.mode,)
    return type(inner).__name__, () if inner.metric is None else (inner.metric,), modes
