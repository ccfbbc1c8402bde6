"""Progress of a sweep for views: counters, live trials and the best finished ones. Constant work per record.

It takes the journal's records, as the head writes them or as another process reads them. Of finished trials it keeps
only the best few, so its memory does not grow with the sweep.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.tune.controller.journal import records
from windlass.tune.controller.journal.records import STATUS_AFTER
from windlass.tune.trial import TrialStatus

__all__ = ["Failure", "SweepProgress", "TrialRow"]

Data = Mapping[str, Any]
_NUM_KEPT = 50
_NUM_FAILURES = 20
_NUM_NAMES = 8


@dataclass(slots=True)
class TrialRow:
    """Trial as shown in a table.

    Attributes:
        assigned: the drawn values, flat.
        best: the best value of the sweep's metric so far; None before the first.
        why: reason why it waits.
    """

    trial: str
    assigned: Mapping[str, Any]
    status: TrialStatus = TrialStatus.PENDING
    iteration: int = 0
    metrics: Mapping[str, Any] = field(default_factory=dict)
    best: float | None = None
    place: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """Attempt that failed: its trial and the last line of its traceback."""

    trial: str
    at: float
    line: str


class SweepProgress:
    """Progress of a sweep as a view shows it.

    Attributes:
        live: trials that have not ended, in the order in which they were suggested.
        counts: number of trials by status.
        counts_changed: number of status changes.
        waiting: number of waiting trials by reason.
        best: the trial with the best value so far.
        head_waits: reason why nothing starts, from the head.
        failures: the newest failures.
        total: final number of trials; 0 if unknown.
    """

    def __init__(self, *, metric: str = "", mode: str = "") -> None:
        self.name = ""
        self.metric, self.mode = metric, mode
        self.total = 0
        self.began_at = self.newest_at = 0.0
        self.live: dict[str, TrialRow] = {}
        self.counts: dict[TrialStatus, int] = dict.fromkeys(TrialStatus, 0)
        self.waiting: Counter[str] = Counter()
        self.failures: deque[Failure] = deque(maxlen=_NUM_FAILURES)
        self.counts_changed = 0
        self.num_failures = self.num_interruptions = self.num_reports = self.num_slots = 0
        self.best: TrialRow | None = None
        self.search_ended = self.ended_why = self.limit = self.head_waits = ""
        self.user_metrics: dict[str, None] = {}
        self._kept: list[TrialRow] = []

    @property
    def num_trials(self) -> int:
        """Number of trials that have been suggested so far."""
        return sum(self.counts.values())

    def take(self, kind: str, data: Data, at: float) -> None:
        """Add one record; records of kinds that only later versions know are skipped."""
        self.began_at = self.began_at or at
        self.newest_at = at
        handle = _HANDLERS.get(kind)
        if handle:
            handle(self, data, at)
        for act in data.get("acts") or ():
            self._act(act)

    def top_finished(self, num: int) -> list[TrialRow]:
        """Return the best finished trials, best first.

        Trials without a score come last, newest first.
        """
        self._prune()
        return self._kept[:num]

    def _prune(self) -> None:
        self._kept.sort(key=self._rank)
        del self._kept[_NUM_KEPT:]

    def _rank(self, row: TrialRow) -> tuple[bool, float, int]:
        score = row.best if row.best is not None else 0.0
        return (row.best is None, -score if self.mode == "max" else score, -int(row.trial))

    # --------------------------------------------------------------------------------------------------- the sweep

    def _created(self, data: Data, at: float) -> None:
        objectives, settings = data.get("objectives") or {}, data.get("settings") or {}
        self.name = str(data.get("name", ""))
        self.metric = self.metric or next(iter(objectives.get("metrics") or ()), "")
        self.mode = self.mode or next(iter(objectives.get("modes") or ()), "min")
        self.total = self.total or max(int(settings.get("max_trials") or 0), 0)

    def _opened(self, data: Data, at: float) -> None:
        self.ended_why, self.num_slots = "", 0

    def _search_ended(self, data: Data, at: float) -> None:
        self.search_ended = str(data.get("why", ""))
        self.total = self.num_trials

    def _limit(self, data: Data, at: float) -> None:
        self.limit = str(data.get("why", ""))

    def _asked(self, data: Data, at: float) -> None:
        if data.get("what") in ("extend", "resume"):
            self.search_ended = self.limit = self.ended_why = ""
        if data.get("what") == "extend":  # the total is known again once the search has ended
            self.total = int((data.get("settings") or {}).get("max_trials") or 0)

    def _ended(self, data: Data, at: float) -> None:
        self.ended_why = str(data.get("why", ""))

    def _slot_joined(self, data: Data, at: float) -> None:
        self.num_slots += 1

    def _slot_lost(self, data: Data, at: float) -> None:
        self.num_slots = max(self.num_slots - 1, 0)

    # ---------------------------------------------------------------------------------------------------- trials

    def _suggested(self, data: Data, at: float) -> None:
        self.live[data["trial"]] = TrialRow(data["trial"], data.get("assigned") or data.get("config") or {})
        self.counts[TrialStatus.PENDING] += 1

    def _chosen(self, data: Data, at: float) -> None:
        self._move(data["trial"], TrialStatus.RUNNING)

    def _started(self, data: Data, at: float) -> None:
        row = self.live.get(data["trial"])
        if row:
            row.place = str(data.get("host") or data.get("slot") or "")

    def _reported(self, data: Data, at: float) -> None:
        self.num_reports += 1
        metrics = data["metrics"]
        row = self.live.get(data["trial"])
        if row:
            row.metrics, row.iteration = metrics, int(metrics.get("training_iteration") or 0)
            self.note_score(row, metrics.get(self.metric))
        if len(self.user_metrics) < _NUM_NAMES:
            self.note_names(metrics)
        if "decision" in data:
            status = {"stop": TrialStatus.TERMINATED, "pause": TrialStatus.PAUSED}.get(data["decision"])
            if status:
                self._move(data["trial"], status, str(data.get("why") or ""))

    def note_names(self, metrics: Mapping[str, Any]) -> None:
        """Record the names of reported metrics."""
        self.user_metrics.update((name, None) for name, value in metrics.items() if isinstance(value, int | float))

    def adopt(self, live: Iterable[TrialRow], ended: Iterable[TrialRow]) -> None:
        """Load the state of a sweep that is already running: its live trials and the best finished ones."""
        self.live = {row.trial: row for row in live}
        self._kept = list(ended)
        self.waiting.update(row.why for row in self.live.values() if row.why)
        for row in [*self.live.values(), *self._kept]:
            value, row.best = row.best, None
            self.note_score(row, value)
            self.note_names(row.metrics if len(self.user_metrics) < _NUM_NAMES else {})

    def note_score(self, row: TrialRow, value: Any) -> None:
        """Record a trial's value of the sweep's metric; NaN, infinities and other types are ignored."""
        if not isinstance(value, int | float) or not math.isfinite(value):
            return
        is_max = self.mode == "max"
        if row.best is None or (value > row.best if is_max else value < row.best):
            row.best = value
            if (
                self.best is None
                or self.best.best is None
                or (value > self.best.best if is_max else value < self.best.best)
            ):
                self.best = row

    def _trial_ended(self, data: Data, at: float) -> None:
        how, trial = data.get("how"), data["trial"]
        self.num_interruptions += how == "lost"
        if how == "failed":
            self.num_failures += 1
            lines = str(data.get("error") or data.get("error_kind") or "it failed").strip().splitlines()
            self.failures.append(Failure(trial, at, lines[-1] if lines else "it failed"))
        self._move(trial, TrialStatus(data["status"]), str(data.get("why") or ""))

    def _act(self, act: Data) -> None:
        status = STATUS_AFTER.get(act["act"])
        if act["act"] == "exploit" and act["trial"] in self.live:
            self.live[act["trial"]].assigned = act.get("assigned") or act.get("config") or {}
        if status:
            self._move(act["trial"], status, str(act.get("why") or ""))

    def _move(self, trial: str, status: TrialStatus, why: str = "") -> None:
        row = self.live.get(trial)
        if row is None:
            if not status.is_over:  # a finished trial that a user resumed
                row = next(
                    (kept for kept in self._kept if kept.trial == trial), TrialRow(trial, {}, TrialStatus.TERMINATED)
                )
                self._kept = [kept for kept in self._kept if kept is not row]
                self.live[trial] = row
            else:
                return
        if row.status in (TrialStatus.PENDING, TrialStatus.PAUSED) and row.why:
            self.waiting[row.why] -= 1
            if self.waiting[row.why] <= 0:
                del self.waiting[row.why]
        if status in (TrialStatus.PENDING, TrialStatus.PAUSED) and why:
            self.waiting[why] += 1
        self.counts[row.status] -= 1
        self.counts[status] += 1
        self.counts_changed += 1
        row.status, row.why = status, why
        if status.is_over:
            self._kept.append(self.live.pop(trial))
            if len(self._kept) > 2 * _NUM_KEPT:
                self._prune()


_HANDLERS: dict[str, Callable[[SweepProgress, Data, float], None]] = {
    records.SWEEP_CREATED: SweepProgress._created,
    records.SWEEP_OPENED: SweepProgress._opened,
    records.SWEEP_REQUESTED: SweepProgress._asked,
    records.SWEEP_ENDED: SweepProgress._ended,
    records.SEARCH_ENDED: SweepProgress._search_ended,
    records.LIMIT_REACHED: SweepProgress._limit,
    records.SLOT_JOINED: SweepProgress._slot_joined,
    records.SLOT_LOST: SweepProgress._slot_lost,
    records.TRIAL_SUGGESTED: SweepProgress._suggested,
    records.TRIAL_CHOSEN: SweepProgress._chosen,
    records.TRIAL_STARTED: SweepProgress._started,
    records.TRIAL_REPORTED: SweepProgress._reported,
    records.TRIAL_ENDED: SweepProgress._trial_ended,
}
