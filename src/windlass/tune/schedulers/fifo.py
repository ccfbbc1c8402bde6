"""First come, first served; and the plain meaning of every method, which the other schedulers build on."""

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
"""Credit where no report can change anything; a worker is still heard from now and then."""


class FIFO:
    """Start trials in the order in which they were suggested; let every one run to its end.

    A subclass keeps each argument of `__init__` in an attribute of the same name: that is its JSON form.
    """

    needs_saving: bool = False
    forbids_learning: bool = False
    """Whether a searcher that learns is refused with it: population based training changes configurations itself."""

    def __init__(self) -> None:
        self.metric: str | None = None
        self.mode: str | None = None
        self._turns: dict[str, int] = {}
        self._num_turns = 0

    def settings(self) -> Mapping[str, object]:
        """`{"type": ..., **arguments}` in JSON; code as its import path."""
        return settings_of(self)

    def set_search_properties(self, metric: str | None, mode: str | None, **spec: Any) -> bool:
        """Take metric and mode from elsewhere; False where the scheduler has its own already."""
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
        """The first pending trial that fits, or else the paused one that was added first."""
        for trial in sweep.pending.values():
            if sweep.may_start(trial):
                return trial
        return self.first(sweep, sweep.paused.values())

    def credit(self, sweep: ScheduledSweep, trial: Trial) -> int:
        return ENDLESS if type(self) is FIFO else 1

    def first(self, sweep: ScheduledSweep, trials: Iterable[Trial]) -> Trial | None:
        """The one of these that fits and was added first; a trial that comes back after an error was added then."""
        fitting = (trial for trial in trials if sweep.may_start(trial))
        return min(fitting, key=self.turn, default=None)

    def turn(self, trial: Trial) -> int:
        """The place of a trial in the order in which trials were added."""
        return self._turns.get(trial.id, trial.number)

    def metric_in(self, sweep: ScheduledSweep) -> str:
        """The name of the metric that counts."""
        return self.metric or sweep.metric

    def sign_in(self, sweep: ScheduledSweep) -> float:
        """1 where more is better, -1 where less is."""
        is_max = self.mode == "max" if self.mode else sweep.is_max
        return 1.0 if is_max else -1.0

    def score(self, sweep: ScheduledSweep, result: Metrics) -> float:
        """The metric of a result that has it; more is better.

        Raises:
            UsageError: it is not a number (`bad-metrics`).
        """
        name = self.metric_in(sweep)
        value = result[name]
        if not isinstance(value, (int, float)):
            hint = f"report {name!r} as a float"
            raise BadValueError(f"{name!r} is {value!r}, which is not a number", hint=hint, code="bad-metrics")
        return self.sign_in(sweep) * value


def check_mode(mode: str | None) -> None:
    """Refuse a mode other than `min` and `max`.

    Raises:
        UsageError: it is another one (`bad-value`).
    """
    if mode not in (None, "min", "max"):
        raise BadValueError(f"mode is {mode!r}", hint="it is 'min' or 'max'", code="bad-value")


def refuse(what: str, hint: str) -> UsageError:
    """The error of an argument that makes no sense."""
    return BadValueError(what, hint=hint, code="bad-value")
