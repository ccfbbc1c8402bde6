"""Search over settings of an experiment: space, metrics, scheduler, searcher and limits.

`windlass.tune` interprets it: the space and the names of schedulers and searchers are kept as written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Annotated, Literal, TypeAlias

from windlass.config.annotations import Diagnostic, Doc, DurationText, JsonValue, OneOrMany, Range
from windlass.core.dataclass import dataclass

__all__ = ["Algorithm", "KeptBySweep", "Sweep", "SweepLimits"]

Algorithm: TypeAlias = str | Mapping[str, JsonValue]
"""Name, or name with settings, such as `asha` or `{asha: {max_t: 81}}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLimits:
    """Limits that end the whole sweep."""

    time: Annotated[
        float | None,
        DurationText(),
        Range(min=1),
        Doc("Total running time of the sweep, across all jobs that run its controller."),
    ] = None
    trials: Annotated[int | None, Range(min=1), Doc("Maximum number of trials.")] = None
    gpu_hours: Annotated[float | None, Range(above=0), Doc("Maximum GPU-hours of all trials together.")] = None
    cost: Annotated[
        float | None, Range(above=0), Doc("Maximum cost of all trials together, calculated from `prices`.")
    ] = None
    prices: Annotated[Mapping[str, float], Doc("Hourly price of each resource: `{GPU: 2.5, CPU: 0.04}`.")] = field(
        default_factory=dict
    )

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        if self.cost is not None and not self.prices:
            hint = "add hourly prices: `prices: {GPU: 2.5}`"
            yield "cost", "`limits.cost` needs `limits.prices`", "invalid-value", hint
        if self.prices and self.cost is None:
            hint = "add a maximum cost: `cost: 100`"
            yield "prices", "`limits.prices` has no effect without `limits.cost`", "setting-unused", hint


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBySweep:
    """Checkpoints of each trial to keep; the newest is always kept."""

    best: Annotated[
        int | None, Range(min=1), Doc("Number of checkpoints with the best score to keep; default: all.")
    ] = None
    by: Annotated[
        str, Doc("Metric that ranks them; default: the sweep's first metric; `-NAME` keeps the smallest values.")
    ] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Search over settings: each trial is a run of the experiment with overrides."""

    metric: Annotated[tuple[str, ...], OneOrMany(), Doc("Metrics that the trials report; the most important first.")]
    mode: Annotated[tuple[Literal["min", "max"], ...], OneOrMany(), Doc("`min` or `max`, one for each metric.")]
    space: Annotated[
        Mapping[str, JsonValue],
        Doc(
            "Settings that vary: NAME: {KIND: ...}; `lr` is short for `params.lr`, others are paths (`tasks.train.gpus`)."
        ),
    ]
    samples: Annotated[
        int, Range(min=-1), Doc("Number of trials; with `grid`, number of repetitions of the grid; -1: until a limit.")
    ] = 1
    first: Annotated[tuple[Mapping[str, JsonValue], ...], OneOrMany(), Doc("Points to try first.")] = ()
    scheduler: Annotated[
        Algorithm, Doc("Scheduler that stops, pauses and clones trials: `asha`, `{pbt: {...}}`, ...")
    ] = "fifo"
    search: Annotated[Algorithm, Doc("Searcher that proposes points: `random`, `tpe`, `{gp: {...}}`, ...")] = "random"
    stop: Annotated[Mapping[str, JsonValue], Doc("Ends a trial when a metric reaches a value: NAME: NUMBER.")] = field(
        default_factory=dict
    )
    concurrency: Annotated[
        int | None, Range(min=1), Doc("Maximum number of concurrent trials; default: as many as fit.")
    ] = None
    limits: Annotated[SweepLimits, Doc("Limits that end the sweep.")] = SweepLimits()
    failures: Annotated[int, Range(min=-1), Doc("Restarts of a failed trial, beyond `retry`; -1: unlimited.")] = 0
    keep: Annotated[KeptBySweep, Doc("Checkpoints to keep.")] = KeptBySweep()
    seed: Annotated[int, Range(min=0), Doc("Seed of all random choices.")] = 0
    trainable: Annotated[
        str,
        Doc("`MODULE:NAME` of a class or function; each run of the task then executes many trials, one after another."),
    ] = ""
    slots: Annotated[
        int | None, Range(min=1), Doc("Number of runs that execute the trials of `trainable`; default: `concurrency`.")
    ] = None

    @property
    def num_slots(self) -> int:
        """Return the number of runs that the trials of a trainable share; 0 means as many as fit."""
        return self.slots or self.concurrency or 0

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        yield from self._check_goal()
        if not self.space:
            yield (
                "space",
                "`space` is empty",
                "invalid-value",
                "name the settings that vary: `lr: {loguniform: [1e-5, 1e-1]}`",
            )
        if self.samples == 0:
            yield (
                "samples",
                "`samples` is 0, so there would be no trials",
                "invalid-value",
                "write a number from 1, or -1",
            )
        if self.samples == -1 and self.limits == SweepLimits():
            hint = (
                "add one: `limits: {trials: 100}`, `{time: 2h}`, `{gpu_hours: 10}` or `{cost: 50, prices: {GPU: 2.5}}`"
            )
            yield "samples", "`samples: -1` never ends without a limit", "invalid-value", hint
        for key in ("scheduler", "search"):
            yield from _check_algorithm(key, getattr(self, key))
        for name, bound in self.stop.items():
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                yield f"stop.{name}", f"`stop.{name}` is not a number", "invalid-value", f"write `{name}: 0.9`"
        if self.keep.by and self.keep.best is None:
            hint = f"add the number to keep: `keep: {{best: 3, by: {self.keep.by}}}`"
            yield (
                "keep.by",
                "`keep.by` has no effect without `keep.best`: all checkpoints are kept",
                "setting-unused",
                hint,
            )
        if self.slots is not None and not self.trainable:
            hint = "set `trainable`, or write `concurrency` instead"
            yield "slots", "`slots` has no effect without `trainable`", "setting-unused", hint
        if self.trainable and self.trainable.count(":") != 1:
            hint = "write `MODULE:NAME`, such as `train:Trainer`"
            yield "trainable", f"`{self.trainable}` does not name a class or function", "invalid-value", hint

    def _check_goal(self) -> Iterator[Diagnostic]:
        if not self.metric or not all(self.metric):
            yield "metric", "`metric` is empty", "invalid-value", "write a metric that the code reports, such as `loss`"
        elif len(self.metric) != len(self.mode):
            message = f"{len(self.metric)} metrics and {len(self.mode)} modes"
            yield "mode", message, "invalid-value", f"write one mode for each of {', '.join(self.metric)}"


def _check_algorithm(key: str, value: Algorithm) -> Iterator[Diagnostic]:
    if not isinstance(value, str) and (
        len(value) != 1 or not isinstance(next(iter(value.values())), Mapping | type(None))
    ):
        hint = "write `NAME`, or `{NAME: {SETTING: VALUE}}`"
        yield key, f"`{key}` is neither a name nor one name with its settings", "invalid-value", hint
