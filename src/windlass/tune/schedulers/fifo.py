"""First come, first served: the scheduler that makes no decisions, and base class of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from windlass.core.errors import UsageError
from windlass.tune.errors import BadValueError
from windlass.tune.schedulers.protocol import CONTINUE, ScheduledSweep, Verdict
from windlass.tune.schedulers.settings import settings_of
from windlass.tune.trial import Metrics, Trial

__all__ = ["ENDLESS", "FIFO", "check_mode", "refuse"]

ENDLESS = 1000
"""Credit if no report can change a decision; workers still wait for an answer now and then."""


class FIFO:
    """Scheduler that starts trials in the order in which they were suggested, and runs each to its end.

    A subclass keeps each argument of `__init__` in an attribute of the same name, from which its JSON form is made.
    """

    needs_saving: bool = False
    forbids_learning: bool = False
    """True refuses searchers that learn: population based training changes configurations itself."""

    def __init__(self) -> None:
        self.metric: str | None = None
        self.mode: str | None = None
        self._turns: dict[str, int] = {}
        self._num_turns = 0

    def settings(self) -> Mapping[str, object]:
        """Return `{"type": ..., **arguments}` as JSON, with code as import paths."""
        return settings_of(self)

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Set metric and mode; return False if the scheduler has its own already."""
        del spec
        if (self.metric and metric) or (self.mode and mode):
            return False
        self.metric, self.mode = self.metric or metric, self.mode or mode
        return True

    def on_add(self, sweep: ScheduledSweep, trial: Trial) -> None:
        self._num_turns += 1
        self._turns[trial.id] = self._num_turns

    def on_result(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> Verdict:
        return CONTINUE

    def on_complete(self, sweep: ScheduledSweep, trial: Trial, result: Metrics) -> None:
        self._turns.pop(trial.id, None)

    def on_error(self, sweep: ScheduledSweep, trial: Trial) -> None:
        self._turns.pop(trial.id, None)

    def on_remove(self, sweep: ScheduledSweep, trial: Trial) -> None:
        self._turns.pop(trial.id, None)

    def choose(self, sweep: ScheduledSweep) -> Trial | None:
        """Return the first pending trial that fits, or else the paused one that was added first."""
        for trial in sweep.pending.values():
            if sweep.may_start(trial):
                return trial
        return self.first(sweep, sweep.paused.values())

    def credit(self, sweep: ScheduledSweep, trial: Trial) -> int:
        return ENDLESS if type(self) is FIFO else 1

    def first(self, sweep: ScheduledSweep, trials: Iterable[Trial]) -> Trial | None:
        """Return the trial that was added first among those that fit.

        A trial is added again when it is retried.
        """
        fitting = (trial for trial in trials if sweep.may_start(trial))
        return min(fitting, key=self.turn, default=None)

    def turn(self, trial: Trial) -> int:
        """Return the position of a trial in the order in which trials have been added."""
        return self._turns.get(trial.id, trial.number)

    def metric_in(self, sweep: ScheduledSweep) -> str:
        """Return the name of the metric by which trials are compared."""
        return self.metric or sweep.metric

    def sign_in(self, sweep: ScheduledSweep) -> float:
        """Return 1 if higher is better, -1 if lower is better."""
        is_max = self.mode == "max" if self.mode else sweep.is_max
        return 1.0 if is_max else -1.0

    def score(self, sweep: ScheduledSweep, result: Metrics) -> float:
        """Return the metric in a result, with a sign such that higher is better.

        Raises:
            UsageError: it is not a number (`invalid-value`).
        """
        name = self.metric_in(sweep)
        value = result[name]
        if not isinstance(value, (int, float)):
            hint = f"report {name!r} as a float"
            raise BadValueError(f"{name!r} is {value!r}, which is not a number", hint=hint, code="invalid-value")
        return self.sign_in(sweep) * value


def check_mode(mode: str | None) -> None:
    """Check that a mode is `min` or `max`.

    Raises:
        UsageError: the mode is another one (`invalid-value`).
    """
    if mode not in (None, "min", "max"):
        raise BadValueError(f"invalid mode {mode!r}", hint="use 'min' or 'max'", code="invalid-value")


def refuse(what: str, hint: str) -> UsageError:
    """Return the error for an invalid argument."""
    return BadValueError(what, hint=hint, code="invalid-value")
