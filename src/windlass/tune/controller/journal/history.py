"""History of a sweep: a summary of its journal for readers, made without scheduler or searcher.

Tables, views, analysis, followers and `sweep why` read this; the controller does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.core.errors import PreconditionError
from windlass.record.frames import Record
from windlass.tune.controller.journal import records
from windlass.tune.controller.journal.records import STATUS_AFTER
from windlass.tune.controller.journal.stream import JournalStream, no_sweep
from windlass.tune.controller.settings import PartialGoal, SweepSettings, resources_from_data
from windlass.tune.folder import SweepFolder
from windlass.tune.search.protocol import Objectives
from windlass.tune.trial import ONE_CPU, Metrics, Resources, SavedState, TrialStatus

__all__ = ["AttemptHistory", "DecisionMade", "History", "TrialHistory", "TrialReport", "read_history"]


@dataclass(frozen=True, slots=True)
class TrialReport:
    """Accepted report; `at` is the wall time in seconds, `saved` the path of the checkpoint saved with it."""

    at: float
    attempt: int
    metrics: Metrics
    saved: str = ""

    @property
    def iteration(self) -> int:
        """`training_iteration` in the report."""
        return int(self.metrics.get("training_iteration", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionMade:
    """Decision about a trial.

    Attributes:
        iteration: `training_iteration` of the trial at the time of the decision.
        decision: `stop`, `pause`, `noop`, `unpause`, `save`, `exploit`, `reshape`, `start`, `end`, `retry`,
            `move` (its machine is taken away).
        by: `scheduler`, `stopper`, `trial`, `user`, `limit` or `head`.
        cause: id of the trial whose report led to the decision; may be the trial itself.
        facts: further data: config, tag and source of an exploit, resources of a reshape, restore of a start.
    """

    at: float
    iteration: int
    decision: str
    why: str
    by: str
    cause: str
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class AttemptHistory:
    """Attempt of a trial; `how` is empty while the attempt runs."""

    number: int
    chosen_at: float
    restore: SavedState | None = None
    slot: str = ""
    host: str = ""
    pid: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    how: str = ""
    error: str = ""
    kind: str = ""


@dataclass(slots=True, kw_only=True)
class TrialHistory:
    """Everything that the journal records about a trial, with lists in the order of events.

    Attributes:
        checkpoints: committed checkpoints that were not deleted.
        suggested_at: wall time in seconds.
        error: the newest traceback.
        note: the note that the searcher attached to the suggestion.
    """

    id: str
    number: int
    config: dict[str, Any]
    assigned: dict[str, Any]
    suggested_at: float
    resources: Resources = ONE_CPU
    note: Any = None
    tag: str = ""
    status: TrialStatus = TrialStatus.PENDING
    why: str = ""
    iteration: int = 0
    last: Metrics | None = None
    reports: list[TrialReport] = field(default_factory=list)
    checkpoints: list[SavedState] = field(default_factory=list)
    decisions: list[DecisionMade] = field(default_factory=list)
    attempts: list[AttemptHistory] = field(default_factory=list)
    num_failures: int = 0
    num_interruptions: int = 0
    error: str = ""
    kind: str = ""
    ended_at: float | None = None

    @property
    def checkpoint(self) -> SavedState | None:
        """Newest checkpoint that has not been deleted."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def host(self) -> str:
        """Host on which the newest attempt runs or ran."""
        return self.attempts[-1].host if self.attempts else ""


@dataclass(slots=True)
class History:
    """Sweep as read from its journal; pass its records to `add` in order.

    Attributes:
        keeps_reports: False keeps only the last report of each trial.
        settings: current settings, after every extension.
        space, scheduler, searcher, stopper, trainable: their descriptions, `{"type": ..., **settings}`.
        slots: current slots, name to host.
        limit: the limit that ended the sweep; empty if none did.
        ended_why: reason why the sweep ended; empty before.
        asked: every request as journalled, with `at`.
    """

    keeps_reports: bool = True
    name: str = ""
    settings: SweepSettings | None = None
    space: Any = None
    scheduler: dict[str, Any] = field(default_factory=dict)
    searcher: dict[str, Any] = field(default_factory=dict)
    stopper: dict[str, Any] | None = None
    trainable: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    created_at: float = 0.0
    last_at: float = 0.0
    trials: dict[str, TrialHistory] = field(default_factory=dict)
    counts: dict[TrialStatus, int] = field(default_factory=lambda: dict.fromkeys(TrialStatus, 0))
    slots: dict[str, str] = field(default_factory=dict)
    heads: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    search_ended: str = ""
    limit: str = ""
    ended_why: str = ""
    num_reports: int = 0

    @property
    def objectives(self) -> Objectives:
        """Metrics and modes that the sweep optimizes."""
        return self.settings.objectives if self.settings is not None else Objectives()

    @property
    def half(self) -> PartialGoal:
        """Metric without a mode, or mode without a metric, if only one is known."""
        return self.settings.half if self.settings is not None else PartialGoal()

    def add(self, record: Record) -> None:
        """Apply the next record; records of kinds that only later versions know are skipped.

        Raises:
            PreconditionError: the record is damaged (`sweep-journal-damaged`).
        """
        self.last_at = record.at
        take = _TAKERS.get(record.kind)
        if take is not None:
            try:
                take(self, record, record.data)
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError, StopIteration) as error:
                raise PreconditionError(
                    f"record {record.seq} of the sweep's journal ({record.kind}) is damaged: {error!r:.200}",
                    hint="restore `journal/head.wj` of the sweep's folder from a backup",
                    code="sweep-journal-damaged",
                ) from error

    def _change(self, trial: TrialHistory, status: TrialStatus, why: str = "") -> None:
        self.counts[trial.status] -= 1
        self.counts[status] += 1
        trial.status = status
        trial.why = why


Data = dict[str, Any]


def _created(history: History, record: Record, data: Data) -> None:
    history.name, history.created_at = data["name"], record.at
    history.settings = SweepSettings.from_data(data["name"], data["objectives"], data["settings"])
    history.space, history.version = data["space"], data["version"]
    history.scheduler, history.searcher = data["scheduler"], data["searcher"]
    history.stopper, history.trainable = data["stopper"], data["trainable"]


def _opened(history: History, record: Record, data: Data) -> None:
    history.heads.append({"at": record.at, "number": data["number"], **data["head"]})
    history.slots.clear()


def _asked(history: History, record: Record, data: Data) -> None:
    history.asked.append({"at": record.at, **data})
    what = data["what"]
    if what in ("extend", "resume"):
        history.search_ended = history.limit = history.ended_why = ""
    if what == "extend" and history.settings is not None:
        settings = {**history.settings.to_data(), **data["settings"]}
        objectives = {
            "metrics": history.objectives.metrics,
            "modes": ["max" if up else "min" for up in history.objectives.is_max],
        }
        history.settings = SweepSettings.from_data(history.name, objectives, settings)
        history.space = data["space"] if data["space"] is not None else history.space
        history.stopper = data["stopper"] if data["stopper"] is not None else history.stopper
    _acts(history, record, data, by="user", cause="")


def _suggested(history: History, record: Record, data: Data) -> None:
    shape = data.get("resources")
    history.trials[data["trial"]] = TrialHistory(
        id=data["trial"],
        number=int(data["trial"]),
        config=data["config"],
        assigned=data["assigned"],
        note=data.get("note"),
        resources=ONE_CPU if shape is None else resources_from_data(shape),
        suggested_at=record.at,
    )
    history.counts[TrialStatus.PENDING] += 1
    _acts(history, record, data, by="scheduler", cause=data["trial"])


def _chosen(history: History, record: Record, data: Data) -> None:
    trial = history.trials[data["trial"]]
    found = data["restore"]
    restore = None if found is None else SavedState(**found)
    trial.attempts.append(AttemptHistory(number=data["attempt"], chosen_at=record.at, restore=restore))
    history._change(trial, TrialStatus.RUNNING)
    facts = {"attempt": data["attempt"], "restore": found}
    _decided(trial, record, "start", data.get("why", ""), "scheduler", trial.id, facts)
    _acts(history, record, data, by="scheduler", cause=trial.id)


def _started(history: History, record: Record, data: Data) -> None:
    attempt = _attempt(history.trials[data["trial"]], data["attempt"])
    attempt.slot, attempt.host, attempt.pid, attempt.started_at = data["slot"], data["host"], data["pid"], record.at


def _attempt(trial: TrialHistory, number: int) -> AttemptHistory:
    return next(attempt for attempt in reversed(trial.attempts) if attempt.number == number)


def _reported(history: History, record: Record, data: Data) -> None:
    trial = history.trials[data["trial"]]
    if type(data["metrics"]) is not dict:
        raise TypeError("metrics are not a mapping")
    report = TrialReport(record.at, data["attempt"], data["metrics"], data.get("saved", ""))
    trial.last, trial.iteration = report.metrics, report.iteration
    history.num_reports += 1
    if history.keeps_reports:
        trial.reports.append(report)
    if report.saved:
        trial.checkpoints.append(SavedState(trial=trial.id, iteration=report.iteration, path=report.saved))
    decision = data.get("decision")
    if decision is not None:
        _decided(trial, record, decision, data["why"], data["by"], trial.id, {})
        if decision == "stop":
            trial.ended_at = record.at
            history._change(trial, TrialStatus.TERMINATED, data["why"])
        elif decision == "pause":
            history._change(trial, TrialStatus.PAUSED, data["why"])
    _acts(history, record, data, by="scheduler", cause=trial.id)


def _saved(history: History, record: Record, data: Data) -> None:
    trial = history.trials[data["trial"]]
    trial.checkpoints.append(SavedState(trial=trial.id, iteration=data["iteration"], path=data["path"]))


def _dropped(history: History, record: Record, data: Data) -> None:
    trial = history.trials[data["trial"]]
    trial.checkpoints = [saved for saved in trial.checkpoints if saved.path != data["path"]]


def _ended(history: History, record: Record, data: Data) -> None:
    trial = history.trials[data["trial"]]
    attempt = _attempt(trial, data["attempt"])
    attempt.ended_at, attempt.how = record.at, data["how"]
    attempt.error, attempt.kind = data.get("error", ""), data.get("error_kind", "")
    trial.num_failures, trial.num_interruptions = data["failures"], data["interruptions"]
    status = TrialStatus(data["status"])
    if attempt.how == "failed":
        trial.error, trial.kind = attempt.error, attempt.kind
    if status is not trial.status or attempt.how in ("failed", "lost"):
        decision = "end" if status.is_over else "retry"
        by = "trial" if attempt.how in ("failed", "done") else "head"
        _decided(trial, record, decision, data.get("why", ""), by, trial.id, {"how": attempt.how})
        trial.ended_at = record.at if status.is_over else None
        history._change(trial, status, data.get("why", ""))
    _acts(history, record, data, by="scheduler", cause=trial.id)


def _put_off(history: History, record: Record, data: Data) -> None:
    _acts(history, record, data, by="scheduler", cause="")


def _limit(history: History, record: Record, data: Data) -> None:
    history.limit = data["why"]
    _acts(history, record, data, by="limit", cause="")


def _search_ended(history: History, record: Record, data: Data) -> None:
    history.search_ended = data["why"]


def _sweep_ended(history: History, record: Record, data: Data) -> None:
    history.ended_why = data["why"]


def _slot_joined(history: History, record: Record, data: Data) -> None:
    history.slots[data["slot"]] = data["host"]


def _slot_lost(history: History, record: Record, data: Data) -> None:
    history.slots.pop(data["slot"], None)


def _noticed(history: History, record: Record, data: Data) -> None:
    trial = history.trials.get(data["trial"])
    if trial is not None:
        _decided(
            trial, record, "move", data["why"], "head", trial.id, {"slot": data["slot"], "gone_at": data["gone_at"]}
        )


def _decided(
    trial: TrialHistory, record: Record, decision: str, why: str, by: str, cause: str, facts: dict[str, Any]
) -> None:
    trial.decisions.append(
        DecisionMade(
            at=record.at, iteration=trial.iteration, decision=decision, why=why, by=by, cause=cause, facts=facts
        )
    )


def _acts(history: History, record: Record, data: Data, *, by: str, cause: str) -> None:
    """Record the actions on trials that came with a decision."""
    for act in data.get("acts", ()):
        trial = history.trials[act["trial"]]
        what = act["act"]
        facts = {key: value for key, value in act.items() if key not in ("act", "trial", "why")}
        if what == "exploit":  # keep the previous value for lineages; it is overwritten below
            source = history.trials[act["source"]["trial"]]
            facts |= {"old_config": trial.config, "old_assigned": trial.assigned, "old_tag": trial.tag}
            facts |= {"source_config": source.config, "source_tag": source.tag, "source_iteration": source.iteration}
        _decided(trial, record, what, act.get("why", ""), by, cause, facts)
        if what == "exploit":
            trial.config, trial.assigned, trial.tag = act["config"], act["assigned"], act["tag"]
            trial.iteration = act["source"]["iteration"]
        elif what == "reshape":
            trial.resources = resources_from_data(act["resources"])
        elif what == "restart":
            trial.iteration, trial.last, trial.tag = 0, None, ""
        if what in STATUS_AFTER:
            history._change(trial, STATUS_AFTER[what], act.get("why", ""))
            trial.ended_at = record.at if what == "stop" else None


_TAKERS: dict[str, Callable[[History, Record, Data], None]] = {
    records.SWEEP_CREATED: _created,
    records.SWEEP_OPENED: _opened,
    records.SWEEP_REQUESTED: _asked,
    records.SWEEP_ENDED: _sweep_ended,
    records.TRIAL_SUGGESTED: _suggested,
    records.SEARCH_ENDED: _search_ended,
    records.TRIAL_CHOSEN: _chosen,
    records.CHOICE_DEFERRED: _put_off,
    records.TRIAL_STARTED: _started,
    records.TRIAL_REPORTED: _reported,
    records.TRIAL_SAVED: _saved,
    records.CHECKPOINT_DROPPED: _dropped,
    records.TRIAL_ENDED: _ended,
    records.SLOT_JOINED: _slot_joined,
    records.SLOT_LOST: _slot_lost,
    records.SLOT_NOTICED: _noticed,
    records.LIMIT_REACHED: _limit,
}


def read_history(folder: Path | str, *, keeps_reports: bool = True) -> History:
    """Read the history of the sweep in a folder, up to the last journal record. Read-only.

    Args:
        keeps_reports: False keeps only the last report of each trial, for long sweeps.

    Raises:
        NotFoundError: the folder holds no sweep (`sweep-not-found`).
    """
    history = History(keeps_reports)
    _add_all(history, JournalStream(SweepFolder(Path(folder))))
    return history


def _add_all(history: History, stream: JournalStream) -> None:
    num_read = 0
    for piece in stream.pieces():
        num_read += len(piece)
        for record in piece:
            history.add(record)
    if not num_read:
        raise no_sweep(stream.folder)
