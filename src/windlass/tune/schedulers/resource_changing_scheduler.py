"""A scheduler around another one that gives running trials more or fewer resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from windlass.tune.errors import BadValueError
from windlass.tune.schedulers.fifo import FIFO
from windlass.tune.schedulers.protocol import NOOP, ScheduledSweep, SchedulerDecision, SweepScheduler, Verdict
from windlass.tune.schedulers.resource_allocation import DistributeResources, DistributeResourcesToTopJob, tidy
from windlass.tune.schedulers.settings import settings_of
from windlass.tune.trial import ONE_CPU, Metrics, Resources, Trial

__all__ = ["DistributeResources", "DistributeResourcesToTopJob", "ResourceChangingScheduler"]

Allocate = Callable[[ScheduledSweep, Trial, Metrics, "ResourceChangingScheduler"], Any]
_EVERYBODY = DistributeResources()


class ResourceChangingScheduler:
    """Where the base scheduler lets a trial go on, ask a function how much it gets; it is paused and resumed for it.

    Args:
        base_scheduler: who decides about trials; FIFO without.
        resources_allocation_function: called with the sweep, the trial, its result and this scheduler; returns
            `Resources`, a `PlacementGroupFactory` or None, which changes nothing.
    """

    needs_saving = True

    def __init__(
        self,
        base_scheduler: SweepScheduler | None = None,
        resources_allocation_function: Allocate | None = _EVERYBODY,
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
        """As the base scheduler's."""
        return bool(getattr(self.base_scheduler, "forbids_learning", False))

    @property
    def times(self) -> tuple[str, ...]:
        """As the base scheduler's."""
        return tuple(getattr(self.base_scheduler, "times", ()))

    def settings(self) -> Mapping[str, object]:
        """`{"type": ..., **arguments}` in JSON; code as its import path."""
        return settings_of(self)

    def newest(self, trial: Trial) -> Metrics:
        """A trial's newest result before the one that is being decided on, as Ray Tune compares them."""
        return self._newest.get(trial.id, {})

    def on_add(self, sweep: ScheduledSweep, trial: Trial) -> None:
        if not self._has_base:
            self.base_resources, self._has_base = trial.resources, True
        elif trial.id not in self._reshaped and not _same(trial.resources, self.base_resources):
            raise BadValueError(
                f"trial {trial.id} needs {trial.resources.bundles}, the first one {self.base_resources.bundles}",
                hint="give all trials the same resources: ResourceChangingScheduler distributes what is left",
                code="resources-differ",
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
