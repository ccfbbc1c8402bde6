"""Conversion of a `sweep:` section to the arguments of a Tuner; errors get a position in the file."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from windlass.config.path import join_path, split_path
from windlass.core.errors import Problem, SourcePlace, SpecError, UsageError, WindlassError
from windlass.spec import Sweep
from windlass.tune import search
from windlass.tune.arguments import check_known
from windlass.tune.executors.runs.trial_template import check_name
from windlass.tune.schedulers.protocol import SweepScheduler
from windlass.tune.schedulers.registry import create_scheduler
from windlass.tune.search.protocol import SearchAlgorithm
from windlass.tune.space.grammar import read_space
from windlass.tune.space.space import Space
from windlass.tune.stopper import MetricStopper
from windlass.tune.tuner.configs import CheckpointConfig, FailureConfig, RunConfig, TuneConfig

__all__ = [
    "NO_ORIGINS",
    "Origins",
    "at_place",
    "awaited_metrics",
    "declared_run",
    "declared_space",
    "declared_tuning",
    "make_searcher",
]

_SPACES_IN = frozenset({"hyperparam_mutations", "param_space", "space"})
"""Arguments of schedulers and searchers that are search spaces."""
Origins = Mapping[str, SourcePlace]
_COUNTED = ("training_iteration", "time_total_s", "timestamp")
"""Metrics that every report of a run has, in addition to those that its code logs."""
NO_ORIGINS: Origins = MappingProxyType({})
"""Origins of a sweep that was already checked."""


@contextmanager
def at_place(origins: Origins, path: str) -> Iterator[None]:
    """Add the position of a setting, or of its nearest parent, to errors that have no position."""
    try:
        yield
    except SpecError:
        raise
    except (WindlassError, ValueError, TypeError) as error:
        if isinstance(error, WindlassError):
            message, code, hint = error.message, error.code, error.hint
        else:
            message, code, hint = f"{path}: {error}", "invalid-value", ""
        raise SpecError([Problem(message, code, _place(origins, path), hint)]) from error


def _place(origins: Origins, path: str) -> SourcePlace | None:
    parts = split_path(path)
    for length in range(len(parts), -1, -1):
        found = origins.get(join_path(parts[:length]))
        if found is not None:
            return found
    return None


def declared_space(sweep: Sweep, origins: Origins = NO_ORIGINS) -> dict[str, Any]:
    """Return the search space; if trials are runs, its names are checked to be settings.

    Raises:
        SpecError: a word in it is unknown, or a name is not a setting that can vary.
    """
    found: dict[str, Any] = {}
    for name, value in sweep.space.items():
        with at_place(origins, join_path(("sweep", "space", name))):
            if not sweep.trainable:
                check_name(name)
            found |= read_space({name: value})
    with at_place(origins, "sweep.space"):
        space = Space(found)
    for number, point in enumerate(sweep.first):
        with at_place(origins, f"sweep.first.{number}"):
            space.preset(point)
    return found


def declared_tuning(sweep: Sweep, origins: Origins = NO_ORIGINS) -> TuneConfig:
    """Return the objectives, scheduler, searcher and limits of the sweep.

    Raises:
        SpecError: the scheduler or searcher is unknown, or its arguments are invalid.
    """
    with at_place(origins, "sweep.scheduler"):
        scheduler = make_scheduler(sweep.scheduler)
    with at_place(origins, "sweep.search"):
        searcher = make_searcher(sweep.search, sweep.first)
    return TuneConfig(
        metric=list(sweep.metric) if len(sweep.metric) > 1 else sweep.metric[0],
        mode=list(sweep.mode) if len(sweep.mode) > 1 else sweep.mode[0],
        scheduler=scheduler,
        search_alg=searcher,
        num_samples=sweep.samples,
        max_concurrent_trials=sweep.concurrency,
        time_budget_s=sweep.limits.time,
        max_trials=sweep.limits.trials,
        gpu_hours=sweep.limits.gpu_hours,
        max_cost=sweep.limits.cost,
        prices=sweep.limits.prices or None,
        seed=sweep.seed,
    )


def declared_run(sweep: Sweep, name: str, storage: Path, origins: Origins = NO_ORIGINS) -> RunConfig:
    """Return the storage, stop conditions and checkpoint retention of the sweep."""
    by = sweep.keep.by or sweep.metric[0]
    mode = "min" if by.startswith("-") else "max" if sweep.keep.by else sweep.mode[0]
    with at_place(origins, "sweep.keep"):
        checkpoints = CheckpointConfig(
            num_to_keep=sweep.keep.best,
            checkpoint_score_attribute=by.removeprefix("-") if sweep.keep.best else None,
            checkpoint_score_order=mode,
        )
    return RunConfig(
        name=name,
        storage_path=storage,
        failure_config=FailureConfig(max_failures=sweep.failures),
        checkpoint_config=checkpoints,
        stop=MetricStopper(sweep.stop, waits=not sweep.trainable) if sweep.stop else None,
    )


def awaited_metrics(sweep: Sweep, scheduler: SweepScheduler) -> list[str]:
    """Return the metrics in a complete report: the objectives, and the scheduler's time if the code logs it."""
    time = getattr(getattr(scheduler, "base_scheduler", scheduler), "time_attr", "")
    return [*sweep.metric, *([time] if time and time not in (*_COUNTED, *sweep.metric) else [])]


def make_scheduler(written: str | Mapping[str, Any]) -> SweepScheduler:
    """Create a scheduler from `asha` or `{asha: {max_t: 81}}`; unknown settings are errors."""
    name, arguments = _called(written)
    made = create_scheduler(name, **arguments)
    check_known(name, arguments, list(inspect.signature(type(made)).parameters))
    return made


def make_searcher(written: str | Mapping[str, Any], first: tuple[Mapping[str, Any], ...] = ()) -> SearchAlgorithm:
    """Create a searcher from `tpe` or `{tpe: {multivariate: true}}`, with the points to try first."""
    name, arguments = _called(written)
    if first:
        arguments["points_to_evaluate"] = [dict(point) for point in first]
    return search.create_searcher(name, **arguments)


def _called(written: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments, in which search spaces have been parsed."""
    if isinstance(written, str):
        return written, {}
    ((name, given),) = written.items()
    arguments: dict[str, Any] = dict(given or {})
    if twice := sorted({"metric", "mode"} & arguments.keys()):
        raise UsageError(
            f"the {twice[0]} is set twice: in the sweep, and in `{name}` ({arguments[twice[0]]})",
            hint=f"leave it out of `{name}`",
            code="conflicting-options",
        )
    for key in _SPACES_IN & arguments.keys():
        arguments[key] = read_space(arguments[key])
    return name, arguments
