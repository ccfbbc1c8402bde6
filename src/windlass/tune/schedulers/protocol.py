"""Protocol of trial schedulers, which decide which trials run, stop, pause, or clone another.

A scheduler is pure: no clock, no file, no global randomness. Its state follows from the calls made to it, so the
controller restores it by repeating those calls from the journal. Constant work per call (amortised).
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
    """Decision on the trial that has reported."""

    CONTINUE = "continue"
    PAUSE = "pause"  # save, release the slot, resume later
    STOP = "stop"
    NOOP = "noop"  # the scheduler has acted through the sweep


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision with its reason in one sentence, as `sweep why` shows it, except for CONTINUE."""

    decision: SchedulerDecision
    why: str = ""


CONTINUE = Verdict(SchedulerDecision.CONTINUE)
NOOP = Verdict(SchedulerDecision.NOOP)


class ScheduledSweep(Protocol):
    """Sweep as a scheduler sees it, with actions on trials other than the one that has reported."""

    @property
    def metric(self) -> str:
        """Name of the (first) metric, or `-` if none was given."""

    @property
    def is_max(self) -> bool:
        """True if a higher value of the metric is better."""

    @property
    def trials(self) -> Mapping[str, Trial]:
        """All trials by id, in the order of suggestion.

        Too many to iterate over in `on_result`.
        """

    @property
    def pending(self) -> Mapping[str, Trial]:
        """Trials that have never run or have lost their worker, in the order in which they may start."""

    @property
    def paused(self) -> Mapping[str, Trial]:
        """Paused trials, in the order in which they were paused."""

    @property
    def running(self) -> Mapping[str, Trial]:
        """Trials that have a slot."""

    @property
    def is_searching(self) -> bool:
        """True if a new trial may still arrive, for which `choose` can leave room.

        False when the search has ended, and in a choice that is repeated because the searcher has none at present.
        """

    def live(self) -> Collection[Trial]:
        """Trials that have not ended: pending, paused and running."""

    @property
    def capacity(self) -> Mapping[str, float]:
        """Total amount of each resource according to the journal; empty if unknown."""

    def may_start(self, trial: Trial) -> bool:
        """Return whether a free slot fits the trial, and the checkpoint that it loads has been committed."""

    def draw(self, *purpose: object) -> Random:
        """Return a new generator seeded from the sweep's seed and the purpose; equal purposes give equal generators."""

    def stop(self, trial: Trial, why: str) -> None:
        """Stop a trial, whatever its status; the scheduler is not called back."""

    def pause(self, trial: Trial, why: str, *, saves: bool = True) -> None:
        """Pause a running trial."""

    def unpause(self, trial: Trial, why: str) -> None:
        """Make a paused trial PENDING, ahead of trials that have never run; its save may still be in progress."""

    def save(self, trial: Trial) -> SavedState | None:
        """Request a checkpoint of a running trial; return a reference that can be used at once.

        For a paused trial: the checkpoint of its pause, committed or not; None if it has none.
        """

    def exploit(
        self, trial: Trial, *, config: dict[str, Any], source: SavedState, tag: str, why: str, assigned: dict[str, Any]
    ) -> None:
        """Pause a trial without saving, to continue with another configuration from another trial's checkpoint.

        A paused trial stays paused. `source` may be the trial's own checkpoint: a change of configuration.
        """

    def reshape(self, trial: Trial, resources: Resources, why: str) -> None:
        """Pause a running trial, which then continues with other resources."""


class SweepScheduler(Protocol):
    """Scheduling algorithm.

    Subclass `windlass.tune.schedulers.FIFO`, which implements all methods and makes no decisions.
    """

    metric: str | None
    """Metric and mode as given to the scheduler; the controller fills in those of `TuneConfig`, or refuses two."""
    mode: str | None

    @property
    def needs_saving(self) -> bool:
        """True if it pauses or clones trials; a trainable that cannot save is then rejected at the start."""

    def settings(self) -> Mapping[str, object]:
        """Return the arguments in JSON form, for the journal.

        Code, such as a custom `explore`, is stored as its import path or name.
        """

    def on_add(self, sweep: ScheduledSweep, trial: Trial) -> None:
        """Called when a trial has been suggested, or will be retried after an error.

        May fill in values that `trial.config` and `trial.assigned` lack (population based training draws them), so the
        trial is journalled after this call.
        """

    def on_result(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Verdict:
        """Called when a trial has reported; `trial.last` is this result already.

        Not called for a result that holds `done`, or by which a stopper ends the trial: those only call `on_complete`.
        May add to `result` (`hyperband_info/budget`); the searcher gets it after this call.
        """

    def on_complete(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> None:
        """Called when a running trial has ended.

        It ended by itself, or was ended by a stopper, from outside, or by this scheduler's own STOP.

        `result` is its last one; `trial.status` is TERMINATED already.
        """

    def on_error(self, sweep: ScheduledSweep, trial: Trial) -> None:
        """Called when a trial has failed, and either has no failures left or moves to the end of the queue."""

    def on_remove(self, sweep: ScheduledSweep, trial: Trial) -> None:
        """Called when a trial that was not running has been ended from outside, but never for `ScheduledSweep.stop`."""

    def choose(self, sweep: ScheduledSweep) -> Trial | None:
        """Return the trial that gets a free slot, or None to leave the slot free.

        A call that returns None without acting through the sweep must not change anything: it is not repeated when a
        sweep is restored. HyperBand may end and unpause trials here when nothing runs.
        """

    def credit(self, sweep: ScheduledSweep, trial: Trial) -> int:
        """Return the number of reports after which an answer is needed, at least 1.

        All but the last of them get CONTINUE whatever they hold, so the worker can run ahead.
        """
