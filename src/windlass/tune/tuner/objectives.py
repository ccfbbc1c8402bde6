"""Resolution of a sweep's objectives: its metrics and modes, each of which may be given in only one place.

As in Ray Tune, metric and mode may be given in different places. If no decision depends on them, either may be given
alone, and readers of the results complete it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windlass.tune.controller.settings import PartialGoal
from windlass.tune.errors import BadValueError
from windlass.tune.search.protocol import Objectives
from windlass.tune.trial import ANONYMOUS_METRIC
from windlass.tune.tuner.configs import TuneConfig

__all__ = ["resolve_objectives"]

Place = tuple[str, tuple[str, ...], tuple[str, ...]]
"""Sources of the metrics, their names, and their modes."""


def resolve_objectives(config: TuneConfig, scheduler: Any, searcher: Any) -> tuple[Objectives, PartialGoal]:
    """Return the objectives.

    They are empty if none are given, or if only a metric or mode is given on which no decision depends.

    Raises:
        BadValueError: a metric or mode is given twice (`conflicting-options`; a searcher may repeat TuneConfig), or a
            decision depends on a metric without a mode (`unknown-metric`).
    """
    stated = ("TuneConfig", config.metrics, config.modes)
    searching, scheduling = _of_searcher(searcher), _of_scheduler(scheduler)
    naming = [place for place in (stated, searching, scheduling) if place[1] or place[2]]
    for number, place in enumerate(naming):
        for other in naming[number + 1 :]:
            _check_apart(place, other, may_repeat=other is searching or (place is searching and len(place[1]) == 1))
    where, metrics = next(((place[0], place[1]) for place in naming if place[1]), ("", ()))
    modes = next((place[2] for place in naming if place[2]), ())
    decides = _decides(scheduler, searcher)
    if metrics and decides and not modes:
        message = f"{where} names the metric {metrics[0]!r} without a mode, and {decides} compares trials by it"
        raise BadValueError(message, hint="add mode='min' or mode='max'", code="unknown-metric")
    if modes and decides and not metrics:
        metrics = (ANONYMOUS_METRIC,)
    if not (metrics and modes):
        return Objectives(), PartialGoal(metric=next(iter(metrics), ""), mode=next(iter(modes), ""))
    return _objectives(metrics, modes), PartialGoal()


def _check_apart(place: Place, other: Place, *, may_repeat: bool) -> None:
    for own, others in ((place[1], other[1]), (place[2], other[2])):
        if own and others and (own != others or not may_repeat):
            raise _twice(place, other)


def _twice(first: Place, other: Place) -> BadValueError:
    names = " and ".join(f"{place} ({', '.join(named) or 'a mode'})" for place, named, _ in (first, other))
    hint = f"name metric and mode in TuneConfig alone, and leave them out of {other[0]}"
    return BadValueError(f"the metric is set twice: {names}", hint=hint, code="conflicting-options")


def _objectives(metrics: Sequence[str], modes: Sequence[str]) -> Objectives:
    each = modes if len(modes) == len(metrics) else [modes[0]] * len(metrics)
    return Objectives(metrics=tuple(metrics), is_max=tuple(mode == "max" for mode in each))


def _decides(scheduler: Any, searcher: Any) -> str:
    """Return the name of the part that needs a metric and mode, or an empty string if none does."""
    inner = getattr(scheduler, "base_scheduler", scheduler)
    if type(inner).__name__ != "FIFO":
        return type(inner).__name__
    plugin = getattr(getattr(searcher, "searcher", searcher), "plugin", None)
    if plugin is not None:
        return type(plugin).__name__
    return type(searcher).__name__ if searcher.learns else ""


def _of_searcher(searcher: Any) -> Place:
    inner = getattr(searcher, "searcher", searcher)
    if type(searcher).__name__ == "BasicVariantGenerator":
        return type(inner).__name__, (), ()
    from windlass.tune.search.registry import own_names  # lazy: plain search has no goal

    return (type(inner).__name__, *own_names(searcher))


def _of_scheduler(scheduler: Any) -> Place:
    inner = getattr(scheduler, "base_scheduler", scheduler)
    names = ((name,) if name is not None else () for name in (inner.metric, inner.mode))
    return (type(inner).__name__, *names)  # type: ignore[return-value]
