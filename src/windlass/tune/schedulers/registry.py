"""Creation of schedulers by name, or from a sweep's journal."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any, cast

from windlass.core.errors import PreconditionError
from windlass.core.names import nearest
from windlass.tune.errors import BadTypeError, BadValueError
from windlass.tune.schedulers.protocol import SweepScheduler
from windlass.tune.schedulers.settings import from_form, imported

__all__ = ["ASHA", "check_pairing", "create_scheduler", "from_settings"]

_HERE = "windlass.tune.schedulers"
_MODULES = {
    "AsyncHyperBandScheduler": "async_hyperband",
    "DistributeResources": "resource_changing_scheduler",
    "DistributeResourcesToTopJob": "resource_changing_scheduler",
    "FIFO": "fifo",
    "HyperBandForBOHB": "hb_bohb",
    "HyperBandScheduler": "hyperband",
    "MedianStoppingRule": "median_stopping_rule",
    "PB2": "pb2",
    "PopulationBasedTraining": "pbt",
    "PopulationBasedTrainingReplay": "population_based.replay",
    "PromotionASHA": "asha_promotion",
    "ResourceChangingScheduler": "resource_changing_scheduler",
}
_SHORT = {
    "fifo": "FIFO",
    "async_hyperband": "AsyncHyperBandScheduler",
    "asynchyperband": "AsyncHyperBandScheduler",
    "asha": "AsyncHyperBandScheduler",
    "asha_promotion": "PromotionASHA",
    "median_stopping_rule": "MedianStoppingRule",
    "medianstopping": "MedianStoppingRule",
    "hyperband": "HyperBandScheduler",
    "hb_bohb": "HyperBandForBOHB",
    "pbt": "PopulationBasedTraining",
    "pbt_replay": "PopulationBasedTrainingReplay",
    "pb2": "PB2",
    "resource_changing": "ResourceChangingScheduler",
}


def create_scheduler(scheduler: str, **kwargs: Any) -> SweepScheduler:
    """Create the scheduler with a short name, such as `asha` or `pbt`.

    An argument that this scheduler does not have is ignored if another one has it, so that one set of arguments can
    be used to compare several.

    Raises:
        UsageError: the scheduler is unknown (`unknown-name`), or none takes such an argument (`unknown-option`).
    """
    name = scheduler.lower()
    if name not in _SHORT:
        near = nearest(name, _SHORT)
        hint = f"did you mean {near!r}?" if near else f"available: {', '.join(_SHORT)}"
        raise BadValueError(f"unknown scheduler {scheduler!r}", hint=hint, code="unknown-name")
    kind = _kind(_SHORT[name])
    known = _arguments(kind)
    elsewhere = {argument for other in set(_SHORT.values()) for argument in _arguments(_kind(other))}
    for argument in kwargs:
        if argument not in elsewhere:
            near = nearest(argument, known)
            hint = f"did you mean `{near}`?" if near else f"it takes {', '.join(known)}"
            raise BadValueError(f"scheduler {name} has no argument `{argument}`", hint=hint, code="unknown-option")
    return cast("SweepScheduler", kind(**{argument: value for argument, value in kwargs.items() if argument in known}))


def ASHA(kind: str = "stop", **arguments: Any) -> SweepScheduler:  # noqa: N802 - used like a class
    """Create an asynchronous successive halving scheduler.

    `stop` ends trials at milestones, `promote` pauses and promotes them.

    Raises:
        UsageError: `kind` is neither (`invalid-value`), or an argument is unknown (`unknown-option`).
    """
    names = {"stop": "AsyncHyperBandScheduler", "promote": "PromotionASHA"}
    if kind not in names:
        raise BadValueError(f"invalid kind {kind!r} of ASHA", hint="use 'stop' or 'promote'", code="invalid-value")
    made = _kind(names[kind])
    for argument in arguments:
        if argument not in (known := _arguments(made)):
            near = nearest(argument, known)
            hint = f"did you mean `{near}`?" if near else f"it takes {', '.join(known)}"
            raise BadTypeError(f"ASHA has no argument `{argument}`", hint=hint, code="unknown-option")
    return cast("SweepScheduler", made(**arguments))


def from_settings(settings: Mapping[str, Any]) -> Any:
    """Create the scheduler that `settings()` describes, without any results.

    Raises:
        PreconditionError: its code cannot be imported here, and must be passed again (`module-not-found`).
    """
    name = str(settings["type"])
    if name not in _MODULES and ":" not in name:
        raise PreconditionError(
            f"the scheduler of this sweep, {name}, did not record how to recreate it",
            hint="pass the scheduler again when you restore the sweep",
            code="module-not-found",
        )
    kind = _kind(name) if name in _MODULES else imported(name)
    return kind(**{key: from_form(value, from_settings) for key, value in settings.items() if key != "type"})


def check_pairing(scheduler: SweepScheduler, *, searcher: str, learns: bool, metric: str | None) -> None:
    """Check that a scheduler is compatible with the other parts of a sweep.

    Args:
        searcher: name of the searcher, for the message.
        learns: results change what the searcher suggests.
        metric: the sweep's metric; if None, the scheduler must have its own.

    Raises:
        UsageError: a learning searcher with population based training (`searcher-option`); no metric for a scheduler
            that compares trials (`unknown-metric`).
    """
    name = type(scheduler).__name__
    if learns and getattr(scheduler, "forbids_learning", False):
        raise BadValueError(
            f"{name} changes configurations itself, so it cannot be used with {searcher}",
            hint="omit the search algorithm; the first configurations are then drawn at random",
            code="searcher-option",
        )
    inner = getattr(scheduler, "base_scheduler", scheduler)
    compares = "metric" in _arguments(type(inner))
    if compares and not (metric or inner.metric):
        raise BadValueError(
            f"{type(inner).__name__} compares trials, but no metric is set",
            hint='set it once, for example TuneConfig(metric="loss", mode="min")',
            code="unknown-metric",
        )


def _kind(name: str) -> Any:
    return getattr(importlib.import_module(f"{_HERE}.{_MODULES[name]}"), name)  # lazy: a sweep uses one of them


def _arguments(kind: type) -> list[str]:
    return [name for name in inspect.signature(kind.__init__).parameters if name != "self"]  # type: ignore[misc]
