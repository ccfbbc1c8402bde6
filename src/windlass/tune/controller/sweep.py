"""Sweep as schedulers see it: implements the `Sweep` of their protocol with the core's state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from random import Random
from typing import Any

from windlass.tune.controller.settings import resources_to_data
from windlass.tune.controller.state import SweepState
from windlass.tune.executors.protocol import Go
from windlass.tune.rng import draw
from windlass.tune.trial import Resources, SavedState, Trial, TrialStatus

__all__ = ["SweepView"]

_CAN_START = (TrialStatus.PENDING, TrialStatus.PAUSED)


class SweepView:
    """Sweep as schedulers see and change it.

    Changes go to `state.acts` and to the record of the report.

    Args:
        ends: function of the core that ends a trial and notifies scheduler and searcher.

    Attributes:
        fits: whether the executor has room for a shape; set by the core around `choose`.
        only: in a replay, the trial that was chosen, so that no other fits; else None.
        shapes: the resource shapes that trials have had.
        capacity: the total resources of the executor.
        is_searching: whether more trials may be suggested; set by the core.
        reporting: id of the trial whose report is being decided on.
    """

    def __init__(self, state: SweepState, metric: str, is_max: bool, ends: Callable[[Trial, str], None]) -> None:
        self._state = state
        self._ends = ends
        self._metric = metric
        self._is_max = is_max
        self.fits: Callable[[Resources], bool] = _never
        self.only: str | None = None
        self.shapes: set[Resources] = set()
        self.capacity: Mapping[str, float] = {}
        self.is_searching = True
        self.reporting = ""

    @property
    def metric(self) -> str:
        return self._metric

    @property
    def is_max(self) -> bool:
        return self._is_max

    @property
    def trials(self) -> Mapping[str, Trial]:
        return self._state.table.trials

    @property
    def pending(self) -> Mapping[str, Trial]:
        return self._state.table.pending

    @property
    def paused(self) -> Mapping[str, Trial]:
        return self._state.table.paused

    @property
    def running(self) -> Mapping[str, Trial]:
        return self._state.table.running

    def live(self) -> Collection[Trial]:
        return self._state.table.live.values()

    def may_start(self, trial: Trial) -> bool:
        if trial.id in self._state.open_attempts or trial.status not in _CAN_START:
            return False
        is_committed = trial.restore_from is None or bool(trial.restore_from.path)
        return is_committed and self._fits_trial(trial)

    def _fits_trial(self, trial: Trial) -> bool:
        return self.fits(trial.resources) if self.only is None else self.only == trial.id

    def draw(self, *purpose: object) -> Random:
        return draw(self._state.settings.seed, *purpose)

    def stop(self, trial: Trial, why: str) -> None:
        if not trial.status.is_over:
            self._note("stop", trial, why=why)
            self._ends(trial, why)

    def pause(self, trial: Trial, why: str, *, saves: bool = True) -> None:
        if trial.status is not TrialStatus.RUNNING:
            return
        self._note("pause", trial, why=why)
        self._state.pause(trial, why, saves=saves)

    def unpause(self, trial: Trial, why: str) -> None:
        if trial.status is TrialStatus.PAUSED:
            self._note("unpause", trial, why=why)
            self._state.table.move(trial, TrialStatus.PENDING, why, is_back=True)

    def save(self, trial: Trial) -> SavedState | None:
        open_attempt = self._state.open_attempts.get(trial.id)
        if trial.status is not TrialStatus.RUNNING or open_attempt is None:
            return trial.restore_from or trial.checkpoint
        saved = self._state.saved_now(trial)
        if saved is not None:
            return saved
        ask = self._state.awaited_saves.get(trial.id)
        if ask is None or ask.iteration != trial.iteration:
            self._note("save", trial)
            self._state.ask(trial, open_attempt)
            if trial.id == self.reporting:
                open_attempt.wants_save = True
            else:
                go = Go(trial=trial.id, attempt=open_attempt.attempt, credit=0, saves=True, upto=open_attempt.upto)
                self._state.commands.append(go)
        return SavedState(trial=trial.id, iteration=trial.iteration)

    def exploit(
        self, trial: Trial, *, config: dict[str, Any], source: SavedState, tag: str, why: str, assigned: dict[str, Any]
    ) -> None:
        if trial.status.is_over:
            return
        state = self._state
        ask = state.awaited_saves.get(source.trial)
        awaits = not source.path and ask is not None and ask.iteration == source.iteration
        if trial.status is TrialStatus.RUNNING:
            state.halt(trial, saves=False)
        open_attempt = state.open_attempts.get(trial.id)
        if open_attempt is not None:
            open_attempt.is_old = True
        state.table.move(trial, TrialStatus.PAUSED, why)
        trial.config, trial.assigned, trial.tag = config, assigned, tag
        if awaits:
            state.restore_later(trial, source.trial)
            trial.iteration = source.iteration
            found: SavedState | None = source
        else:
            found = state.retention.find(source)
            state.clone(trial, found, of=source.trial)
        facts = {"trial": source.trial, "iteration": trial.iteration, "path": found.path if found is not None else ""}
        self._note("exploit", trial, why=why, config=config, assigned=assigned, tag=tag, source=facts)

    def reshape(self, trial: Trial, resources: Resources, why: str) -> None:
        if trial.status.is_over:
            return
        self._note("reshape", trial, why=why, resources=resources_to_data(resources))
        state = self._state
        if trial.status is TrialStatus.RUNNING:
            state.pause(trial, why)
        trial.resources = resources
        self.shapes.add(resources)

    def _note(self, act: str, trial: Trial, **facts: Any) -> None:
        self._state.acts.append({"act": act, "trial": trial.id, **facts})


def _never(_: Resources) -> bool:
    return False
