"""Our schedulers, driven by the same events as Ray's."""

from __future__ import annotations

from typing import Any

from tests.tune.schedulers.fake_sweep import FakeSweep
from windlass.tune.schedulers import SweepScheduler
from windlass.tune.schedulers.resource_changing_scheduler import tidy
from windlass.tune.trial import Resources, TrialStatus

LETTERS = {
    TrialStatus.PENDING: "P",
    TrialStatus.RUNNING: "R",
    TrialStatus.PAUSED: "U",
    TrialStatus.TERMINATED: "T",
    TrialStatus.ERROR: "E",
}


class OurSide:
    """A scheduler of ours with its trials; the methods are events, each returns what was decided."""

    def __init__(self, scheduler: SweepScheduler, *, seed: int = 0, cpus: float = 0, gpus: float = 0) -> None:
        self.scheduler = scheduler
        self.sweep = FakeSweep(metric=scheduler.metric or "-", is_max=scheduler.mode != "min", seed=seed)
        self.sweep.is_searching = False  # Ray Tune adds trials before there is room for them
        self.sweep.capacity = {"CPU": cpus, "GPU": gpus}

    def add(self, trial_id: str, config: dict[str, Any], shape: Any) -> str:
        trial = self.sweep.add(config, Resources(bundles=tuple(shape[0]), strategy=shape[1]))
        assert trial.id == trial_id
        self.scheduler.on_add(self.sweep, trial)
        return ""

    def choose(self) -> str:
        trial = self.scheduler.choose(self.sweep)
        if trial is None:
            return ""
        assert trial.status in (TrialStatus.PENDING, TrialStatus.PAUSED)
        self.sweep.start(trial)
        return trial.id

    def report(self, trial_id: str, result: dict[str, Any]) -> str:
        return self.sweep.report(self.scheduler, self.sweep.trials[trial_id], result).decision.value

    def complete(self, trial_id: str, result: dict[str, Any]) -> str:
        self.sweep.complete(self.scheduler, self.sweep.trials[trial_id], result)
        return ""

    def fail(self, trial_id: str, is_final: bool) -> str:
        self.sweep.fail(self.scheduler, self.sweep.trials[trial_id], is_final=is_final)
        return ""

    def remove(self, trial_id: str) -> str:
        self.sweep.remove(self.scheduler, self.sweep.trials[trial_id])
        return ""

    def pause(self, trial_id: str) -> str:
        self.sweep.pause(self.sweep.trials[trial_id], "asked")
        return ""

    def statuses(self) -> str:
        """A letter per trial, in order of ids."""
        return "".join(LETTERS[trial.status] for trial in self.sweep.trials.values())

    def shapes(self) -> list[list[dict[str, float]]]:
        found = [[tidy(bundle) for bundle in trial.resources.bundles] for trial in self.sweep.trials.values()]
        return [[bundle for bundle in bundles if bundle] for bundles in found]

    def configs(self) -> list[dict[str, Any]]:
        return [trial.config for trial in self.sweep.trials.values()]
