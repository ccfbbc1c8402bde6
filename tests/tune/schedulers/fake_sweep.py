"""A sweep in memory for tests of schedulers: what the controller would keep, and nothing else happens."""

from __future__ import annotations

from collections.abc import Collection
from random import Random
from typing import Any

from windlass.tune.rng import draw
from windlass.tune.schedulers import SchedulerDecision, SweepScheduler, Verdict
from windlass.tune.trial import ONE_CPU, Metrics, Resources, SavedState, Trial, TrialStatus


class FakeSweep:
    """Implements `schedulers.protocol.ScheduledSweep`; every slot is free, unless `fits` says no."""

    def __init__(self, *, metric: str = "score", is_max: bool = True, seed: int = 0) -> None:
        self.metric = metric
        self.is_max = is_max
        self.seed = seed
        self.trials: dict[str, Trial] = {}
        self.pending: dict[str, Trial] = {}
        self.paused: dict[str, Trial] = {}
        self.running: dict[str, Trial] = {}
        self.capacity: dict[str, float] = {}
        self.is_searching = True
        self.misfits: set[str] = set()
        self.acts: list[tuple[Any, ...]] = []

    def live(self) -> Collection[Trial]:
        return [trial for trial in self.trials.values() if not trial.status.is_over]

    def may_start(self, trial: Trial) -> bool:
        return trial.id not in self.misfits

    def draw(self, *purpose: object) -> Random:
        return draw(self.seed, *purpose)

    def stop(self, trial: Trial, why: str) -> None:
        assert why
        self.acts.append(("stop", trial.id))
        self.move(trial, TrialStatus.TERMINATED)

    def pause(self, trial: Trial, why: str, *, saves: bool = True) -> None:
        self.acts.append(("pause", trial.id))
        self._pause(trial)

    def unpause(self, trial: Trial, why: str) -> None:
        assert why
        assert trial.status is TrialStatus.PAUSED
        self.acts.append(("unpause", trial.id))
        self.move(trial, TrialStatus.PENDING)

    def save(self, trial: Trial) -> SavedState | None:
        if trial.status is not TrialStatus.RUNNING:
            return trial.restore_from or trial.checkpoint
        self.acts.append(("save", trial.id))
        trial.checkpoint = SavedState(trial=trial.id, iteration=trial.iteration)
        return trial.checkpoint

    def exploit(
        self, trial: Trial, *, config: dict[str, Any], source: SavedState, tag: str, why: str, assigned: dict[str, Any]
    ) -> None:
        assert why
        self.acts.append(("exploit", trial.id, source.trial))
        trial.config, trial.assigned, trial.tag = config, assigned, tag
        trial.restore_from, trial.iteration = source, source.iteration
        if trial.status is not TrialStatus.PAUSED:
            self.move(trial, TrialStatus.PAUSED)

    def reshape(self, trial: Trial, resources: Resources, why: str) -> None:
        assert why
        self.acts.append(("reshape", trial.id))
        trial.resources = resources
        self._pause(trial)

    # ---------------------------------------------------------------------------------- what the controller would do

    def move(self, trial: Trial, status: TrialStatus) -> None:
        """To another status, at the end of its queue."""
        queues = {TrialStatus.PENDING: self.pending, TrialStatus.PAUSED: self.paused, TrialStatus.RUNNING: self.running}
        if trial.status in queues:
            queues[trial.status].pop(trial.id, None)
        trial.status = status
        if status in queues:
            queues[status][trial.id] = trial

    def add(self, config: dict[str, Any] | None = None, resources: Resources = ONE_CPU) -> Trial:
        """A new trial, which no scheduler knows yet."""
        number = len(self.trials)
        trial = Trial(id=f"{number:05d}", number=number, config=dict(config or {}), resources=resources)
        self.trials[trial.id] = trial
        self.pending[trial.id] = trial
        return trial

    def start(self, trial: Trial) -> None:
        trial.attempt += 1
        self.move(trial, TrialStatus.RUNNING)

    def report(self, scheduler: SweepScheduler, trial: Trial, result: Metrics) -> Verdict:
        """A result, and what follows from the verdict."""
        trial.last = result
        trial.iteration = int(result.get("training_iteration", trial.iteration))
        verdict = scheduler.on_result(self, trial, result)
        if verdict.decision is not SchedulerDecision.CONTINUE:
            assert verdict.why or verdict.decision is SchedulerDecision.NOOP
        if verdict.decision is SchedulerDecision.STOP:
            self.move(trial, TrialStatus.TERMINATED)
            scheduler.on_complete(self, trial, result)
        elif verdict.decision is SchedulerDecision.PAUSE:
            self._pause(trial)
        return verdict

    def complete(self, scheduler: SweepScheduler, trial: Trial, result: Metrics) -> None:
        trial.last = result
        self.move(trial, TrialStatus.TERMINATED)
        scheduler.on_complete(self, trial, result)

    def fail(self, scheduler: SweepScheduler, trial: Trial, *, is_final: bool) -> None:
        self.move(trial, TrialStatus.ERROR if is_final else TrialStatus.PENDING)
        scheduler.on_error(self, trial)
        if not is_final and not trial.status.is_over:
            scheduler.on_add(self, trial)

    def remove(self, scheduler: SweepScheduler, trial: Trial) -> None:
        self.move(trial, TrialStatus.TERMINATED)
        scheduler.on_remove(self, trial)

    def _pause(self, trial: Trial) -> None:
        trial.checkpoint = trial.restore_from = SavedState(trial=trial.id, iteration=trial.iteration, path="there")
        self.move(trial, TrialStatus.PAUSED)
