"""Scheduler that wraps another one and changes the resources of running trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windlass.tune.errors import BadValueError
from windlass.tune.schedulers.fifo import FIFO, check_mode, refuse
from windlass.tune.schedulers.protocol import NOOP, ScheduledSweep, SchedulerDecision, SweepScheduler, Verdict
from windlass.tune.schedulers.settings import settings_of
from windlass.tune.trial import ONE_CPU, Metrics, Resources, Trial

__all__ = ["DistributeResources", "DistributeResourcesToTopJob", "ResourceChangingScheduler", "tidy"]

Bundle = dict[str, float]
Bundles = list[Bundle]


class DistributeResources:
    """Allocation that gives each live trial an equal part of the free resources.

    It takes some back if there are too few.

    Args:
        add_bundles: give whole bundles, for trials with workers of their own; else the trial's one bundle grows.
        increase_by: the unit that is given, such as `{"CPU": 2, "GPU": 0.5}`; one GPU or CPU without.
        increase_by_times: maximum number of units that a trial gets; no limit if below 1. Only with `increase_by`.
        reserve_resources: resources that are not given to trials.
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
    ) -> None:
        self.add_bundles, self.increase_by = add_bundles, dict(increase_by or {})
        self.increase_by_times, self.reserve_resources = increase_by_times, dict(reserve_resources or {})
        if self.increase_by and (not _size(self.increase_by) or min(self.increase_by.values()) < 0):
            raise refuse(f"increase_by is {self.increase_by!r}", "set a CPU or GPU amount, not below 0")

    def settings(self) -> Mapping[str, object]:
        """Return `{"type": ..., **arguments}` as JSON."""
        return settings_of(self)

    def __call__(
        self, sweep: ScheduledSweep, trial: Trial, result: Metrics, scheduler: ResourceChangingScheduler
    ) -> Resources | None:
        """Return the resources that the trial gets from now on, or None to leave them unchanged."""
        base = scheduler.base_resources
        if not sweep.capacity or result["training_iteration"] < 1:
            return None
        head, bundles = _split(base)
        if not self.add_bundles and len(bundles) > 1:
            hint = "pass DistributeResources(add_bundles=True)"
            raise refuse(f"each trial has {len(bundles)} bundles, but only a single bundle can grow", hint)
        free = {name: sweep.capacity.get(name, 0.0) - self.reserve_resources.get(name, 0.0) for name in ("CPU", "GPU")}
        added = self._added(sweep, trial, scheduler, bundles, free)
        return Resources(bundles=tuple(head + self._sum(bundles, added)), strategy=base.strategy)

    def _added(
        self, sweep: ScheduledSweep, trial: Trial, scheduler: ResourceChangingScheduler, base: Bundles, total: Bundle
    ) -> Bundles:
        """Return the bundles that the trial gets from now on in addition to `base`."""
        unit, num = self._unit(base), len(sweep.live())
        most = self._fair_share(unit, num, {name: total[name] - num * _amount(base, name) for name in total})
        free = _free(sweep, total)
        return self._change(self._difference(_split(trial.resources)[1], base), unit, free, most)

    def _unit(self, base: Bundles) -> Bundle:
        if self.increase_by:
            return self.increase_by
        if self.add_bundles:
            return base[-1]
        return {"GPU": 1.0} if base[0].get("GPU") else {"CPU": 1.0}

    def _fair_share(self, unit: Bundle, num_trials: int, free: Bundle) -> int:
        """Return how many units the first of `num_trials` trials gets if they are dealt out one by one."""
        given = [0] * num_trials
        full: set[int] = set()
        turn = 0
        while len(full) < num_trials and all(free[name] >= unit.get(name, 0) for name in free):
            index = turn % num_trials
            if 0 < self.increase_by_times <= given[index]:
                full.add(index)
            else:
                given[index] += 1
                free = {name: amount - unit.get(name, 0) for name, amount in free.items()}
            turn += 1
        return given[0]

    def _change(self, added: Bundles, unit: Bundle, free: Bundle, most: int = -1) -> Bundles:
        """Take free units, up to `most` in total, or give some back; return the new bundles."""
        times = _times(unit, free)
        if times == 0:
            return added
        if times < 0:
            return self._without(added, unit, -times)
        if self.increase_by_times > 0:
            most = min(most, self.increase_by_times) if most > 0 else self.increase_by_times
        if self.add_bundles:
            bundles = [one for one in [*added, *[unit] * times] if _size(one)]
            return bundles[:most] if most > 0 else bundles
        grown = {name: _amount(added, name) + unit.get(name, 0) * times for name in ("CPU", "GPU")}
        if most > 0:
            grown = {name: min(amount, unit.get(name, 0) * most) for name, amount in grown.items()}
        return [grown]

    def _without(self, added: Bundles, unit: Bundle, times: int) -> Bundles:
        if self.add_bundles:
            return added[:-times]
        return [{name: max(_amount(added, name) - unit.get(name, 0) * times, 0) for name in ("CPU", "GPU")}]

    def _difference(self, bundles: Bundles, base: Bundles) -> Bundles:
        if self.add_bundles:
            return bundles[len(base) :]
        return [{name: _amount(bundles[:1], name) - _amount(base[:1], name) for name in ("CPU", "GPU")}]

    def _sum(self, base: Bundles, added: Bundles) -> Bundles:
        if self.add_bundles:
            return [tidy(one) for one in [*base, *added] if _size(one)]
        both = {name: _amount(base, name) + _amount(added, name) for name in ("CPU", "GPU")}
        return [tidy({**base[0], **both})]


class DistributeResourcesToTopJob(DistributeResources):
    """Allocation that gives all free resources to the trial with the best newest result.

    Trials that were the best before keep their resources.

    Args:
        metric, mode: metric and mode; by default those of the scheduler.
    """

    def __init__(
        self,
        add_bundles: bool = False,
        increase_by: Mapping[str, float] | None = None,
        increase_by_times: int = -1,
        reserve_resources: Mapping[str, float] | None = None,
        metric: str | None = None,
        mode: str | None = None,
    ) -> None:
        check_mode(mode)
        super().__init__(add_bundles, increase_by, increase_by_times, reserve_resources)
        self.metric, self.mode = metric, mode

    def _added(
        self, sweep: ScheduledSweep, trial: Trial, scheduler: ResourceChangingScheduler, base: Bundles, total: Bundle
    ) -> Bundles:
        unit, free = self._unit(base), _free(sweep, total)
        added = self._difference(_split(trial.resources)[1], base)
        best = self._best(sweep, scheduler, base)
        if trial is not best and _times(unit, free) >= 0:
            return added
        return self._change(added, unit, free)

    def _best(self, sweep: ScheduledSweep, scheduler: ResourceChangingScheduler, base: Bundles) -> Trial:
        metric = self.metric or scheduler.metric or sweep.metric
        if metric == "-":
            hint = "name it in TuneConfig, in the scheduler, or pass metric= and mode= here"
            raise BadValueError("DistributeResourcesToTopJob has no metric", hint=hint, code="unknown-metric")
        is_max = (self.mode or scheduler.mode) == "max" if self.mode or scheduler.mode else sweep.is_max
        sign = -1.0 if is_max else 1.0
        ranked = sorted(sweep.live(), key=lambda one: (sign * scheduler.newest(one).get(metric, math.inf), one.number))
        return next((one for one in ranked if self._may_grow(one, base)), ranked[0])

    def _may_grow(self, trial: Trial, base: Bundles) -> bool:
        added = self._difference(_split(trial.resources)[1], base)
        for name in ("CPU", "GPU"):
            most = self.increase_by.get(name, 0) * self.increase_by_times if self.increase_by_times > 0 else math.inf
            has_none = bool(added) and not any(name in one for one in added)
            if (-math.inf if has_none else _amount(added, name)) < most:
                return True
        return False


def tidy(bundle: Mapping[str, float]) -> Bundle:
    """Return a bundle without the resources whose amount is zero."""
    return {name: float(amount) for name, amount in bundle.items() if amount}


def _split(resources: Resources) -> tuple[Bundles, Bundles]:
    """Return the first bundle if it is empty (that of the trial's main process), and the other bundles."""
    bundles = [tidy(bundle) for bundle in resources.bundles]
    return (bundles[:1], bundles[1:]) if not bundles[0] else ([], bundles)


def _free(sweep: ScheduledSweep, total: Bundle) -> Bundle:
    used = [trial.resources.total for trial in sweep.live()]
    return {name: amount - sum(one.get(name, 0.0) for one in used) for name, amount in total.items()}


def _times(unit: Bundle, free: Bundle) -> int:
    """Return how many units fit into the free resources; negative if too many are allocated."""
    cpus, gpus = unit.get("CPU", 0), unit.get("GPU", 0)
    if cpus and gpus:
        return int(min(free["CPU"] // cpus, free["GPU"] // gpus))
    if not (cpus or gpus):
        raise refuse(f"the unit {unit!r} has neither CPU nor GPU", 'pass increase_by={"CPU": 1}')
    return int(free["GPU"] // gpus if gpus else free["CPU"] // cpus)


def _amount(bundles: Sequence[Mapping[str, float]], name: str) -> float:
    return sum(bundle.get(name, 0.0) for bundle in bundles)


def _size(bundle: Mapping[str, float]) -> float:
    return bundle.get("CPU", 0) or bundle.get("GPU", 0)


Allocate = Callable[[ScheduledSweep, Trial, Metrics, "ResourceChangingScheduler"], Any]
_EVEN_SHARES = DistributeResources()


class ResourceChangingScheduler:
    """Scheduler that changes the resources of running trials by a function.

    A trial is paused and resumed for each change.

    Args:
        base_scheduler: scheduler that decides about trials; default FIFO.
        resources_allocation_function: called with the sweep, the trial, its result and this scheduler; returns
            `Resources`, a `PlacementGroupFactory` or None, which changes nothing.
    """

    needs_saving = True

    def __init__(
        self,
        base_scheduler: SweepScheduler | None = None,
        resources_allocation_function: Allocate | None = _EVEN_SHARES,
    ) -> None:
        self.base_scheduler: SweepScheduler = base_scheduler or FIFO()
        self.resources_allocation_function = resources_allocation_function
        self.base_resources: Resources = ONE_CPU
        self._has_base = False
        self._reshaped: set[str] = set()
        self._newest: dict[str, Metrics] = {}

    @property
    def metric(self) -> str | None:
        return self.base_scheduler.metric

    @metric.setter
    def metric(self, metric: str | None) -> None:
        self.base_scheduler.metric = metric

    @property
    def mode(self) -> str | None:
        return self.base_scheduler.mode

    @mode.setter
    def mode(self, mode: str | None) -> None:
        self.base_scheduler.mode = mode

    @property
    def forbids_learning(self) -> bool:
        """True if the base scheduler forbids searchers that learn."""
        return bool(getattr(self.base_scheduler, "forbids_learning", False))

    @property
    def times(self) -> tuple[str, ...]:
        """Names that the base scheduler needs in the first report."""
        return tuple(getattr(self.base_scheduler, "times", ()))

    def settings(self) -> Mapping[str, object]:
        """Return `{"type": ..., **arguments}` as JSON, with code as import paths."""
        return settings_of(self)

    def newest(self, trial: Trial) -> Metrics:
        """Return the result of a trial before the current one, which Ray Tune compares."""
        return self._newest.get(trial.id, {})

    def on_add(self, sweep: ScheduledSweep, trial: Trial) -> None:
        if not self._has_base:
            self.base_resources, self._has_base = trial.resources, True
        elif trial.id not in self._reshaped and not _same(trial.resources, self.base_resources):
            raise BadValueError(
                f"trial {trial.id} needs {trial.resources.bundles}, but the first trial needs {self.base_resources.bundles}",
                hint="give all trials the same resources: ResourceChangingScheduler distributes the rest",
                code="invalid-value",
            )
        self.base_scheduler.on_add(sweep, trial)

    def on_result(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Verdict:
        verdict = self.base_scheduler.on_result(sweep, trial, result)
        if verdict.decision is SchedulerDecision.CONTINUE and self.resources_allocation_function is not None:
            new = self.resources_allocation_function(sweep, trial, result, self)
            new = new.to_resources() if hasattr(new, "to_resources") else new
            if new is not None and not _same(new, trial.resources):
                self._reshaped.add(trial.id)
                sweep.reshape(trial, new, f"it gets {_shown(new)} instead of {_shown(trial.resources)}")
                verdict = NOOP
        self._newest[trial.id] = result
        return verdict

    def on_complete(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> None:
        self._newest.pop(trial.id, None)
        self.base_scheduler.on_complete(sweep, trial, result)

    def on_error(self, sweep: ScheduledSweep, trial: Trial) -> None:
        self.base_scheduler.on_error(sweep, trial)

    def on_remove(self, sweep: ScheduledSweep, trial: Trial) -> None:
        self._newest.pop(trial.id, None)
        self.base_scheduler.on_remove(sweep, trial)

    def choose(self, sweep: ScheduledSweep) -> Trial | None:
        return self.base_scheduler.choose(sweep)

    def credit(self, sweep: ScheduledSweep, trial: Trial) -> int:
        return self.base_scheduler.credit(sweep, trial) if self.resources_allocation_function is None else 1


def _same(first: Resources, second: Resources) -> bool:
    bundles = [[tidy(bundle) for bundle in one.bundles] for one in (first, second)]
    return bundles[0] == bundles[1] and first.strategy == second.strategy


def _shown(resources: Resources) -> str:
    return " + ".join(
        ", ".join(f"{amount:g} {name}" for name, amount in bundle.items()) for bundle in resources.bundles
    )
