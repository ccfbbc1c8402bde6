"""What a trial scheduler is: it watches results and says which trials go on, stop, wait, or take over from another.

A scheduler is pure: no clock, no file, no global randomness. Its whole state follows from the calls it got, so the
controller restores it by making the same calls again from the journal. Constant work per call (amortised).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any, Protocol

from windlass.tune.trial import Metrics, Resources, SavedState, Trial

__all__ = ["CONTINUE", "NOOP", "ScheduledSweep", "SchedulerDecision", "SweepScheduler", "Verdict"]


class SchedulerDecision(Enum):
    """What becomes of the trial that reported."""

    CONTINUE = "continue"
    PAUSE = "pause"  # save, give the slot back, go on later
    STOP = "stop"
    NOOP = "noop"  # the scheduler has dealt with it through the sweep


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision and, except for CONTINUE, its reason in one sentence as `sweep why` shows it."""

    decision: SchedulerDecision
    why: str = ""


CONTINUE = Verdict(SchedulerDecision.CONTINUE)
NOOP = Verdict(SchedulerDecision.NOOP)


class ScheduledSweep(Protocol):
    """What a scheduler sees of the sweep, and what it may do to other trials than the one that reported."""

    @property
    def metric(self) -> str:
        """Name of the (first) metric; `-` where nothing was named."""

    @property
    def is_max(self) -> bool:
        """Whether more of the metric is better."""

    @property
    def trials(self) -> Mapping[str, Trial]:
        """All trials by id, in order. Never walk it in `on_result`."""

    @property
    def pending(self) -> Mapping[str, Trial]:
        """Trials that never ran, or lost their worker, in the order in which they may start."""

    @property
    def paused(self) -> Mapping[str, Trial]:
        """Paused trials, in the order in which they were paused."""

    @property
    def running(self) -> Mapping[str, Trial]:
        """Trials that have a slot."""

    @property
    def is_searching(self) -> bool:
        """Whether a new trial may come, so that `choose` may leave room for it; what waits for one need not when not.

        False when the search has ended, and in a choice that is asked again since the searcher has none at present.
        """

    def live(self) -> Collection[Trial]:
        """Trials that are not over: pending, paused and running."""

    @property
    def capacity(self) -> Mapping[str, float]:
        """What the place has in total, by resource, as the journal says; empty where it is not known."""

    def may_start(self, trial: Trial) -> bool:
        """Whether a slot is free that fits the trial, and what it loads is committed."""

    def draw(self, *purpose: object) -> Random:
        """A fresh generator of this sweep's seed and the purpose; the same for the same purpose, always."""

    def stop(self, trial: Trial, why: str) -> None:
        """End a trial, whatever its status; the scheduler that asks is not called back."""

    def pause(self, trial: Trial, why: str, *, saves: bool = True) -> None:
        """Take a running trial off its slot."""

    def unpause(self, trial: Trial, why: str) -> None:
        """Let a paused trial be chosen again before those behind it (status PENDING), also while it still saves."""

    def save(self, trial: Trial) -> SavedState | None:
        """Ask a running trial for a checkpoint; returns a reference to it that may be used at once.

        For a paused trial: the checkpoint of its pause, committed or not; None if it has none.
        """

    def exploit(
        self, trial: Trial, *, config: dict[str, Any], source: SavedState, tag: str, why: str, assigned: dict[str, Any]
    ) -> None:
        """Pause a trial without saving; it goes on with another configuration from another trial's checkpoint.

        One that is paused already stays so. `source` may be the trial's own checkpoint: a change of configuration.
        """

    def reshape(self, trial: Trial, resources: Resources, why: str) -> None:
        """Pause a running trial; it goes on with other resources."""


class SweepScheduler(Protocol):
    """One algorithm. Subclass `windlass.tune.schedulers.FIFO` to get every method with its plain meaning."""

    metric: str | None
    """Metric and mode as given to the scheduler; the controller fills in those of `TuneConfig`, or refuses two."""
    mode: str | None

    @property
    def needs_saving(self) -> bool:
        """Whether it pauses or clones trials: a trainable that cannot save is refused before anything starts."""

    def settings(self) -> Mapping[str, object]:
        """The JSON form of its arguments, for the journal; code (a custom explore) as its import path or name."""

    def on_add(self, sweep: ScheduledSweep, trial: Trial) -> None:
        """A trial was suggested, or comes back after an error.

        May fill in what `trial.config` and `trial.assigned` lack (population based training draws it), so the trial is
        journalled after this call.
        """

    def on_result(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Verdict:
        """A trial reported; `trial.last` is this result already.

        Not called for a result that holds `done`, or by which a stopper ends the trial: that goes to `on_complete`
        alone. May add to `result` (`hyperband_info/budget`); the searcher is told after this call.
        """

    def on_complete(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> None:
        """A running trial ended: by itself, by a stopper, from outside, or by this scheduler's own STOP.

        `result` is its last one; `trial.status` is TERMINATED already.
        """

    def on_error(self, sweep: ScheduledSweep, trial: Trial) -> None:
        """A trial failed, and its failure budget is spent or it goes to the end of the queue."""

    def on_remove(self, sweep: ScheduledSweep, trial: Trial) -> None:
        """A trial that was not running was ended from outside; never called for `Sweep.stop`."""

    def choose(self, sweep: ScheduledSweep) -> Trial | None:
        """Which trial gets a free slot; None leaves it free.

        A call that returns None and did not act through the sweep changed nothing, and need not be made again when a
        sweep is restored. HyperBand may end and unpause trials here when nothing runs.
        """

    def credit(self, sweep: ScheduledSweep, trial: Trial) -> int:
        """How many reports may come before an answer is needed, at least 1.

        All but the last of them get CONTINUE whatever they hold, so the worker may run ahead.
        """
