"""Inputs of the controller's core, other than executor events, and readers for their journal records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass.tune.controller.journal import records
from windlass.tune.controller.settings import resources_from_data
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptSaved,
    AttemptStarted,
    SlotJoined,
    SlotLost,
    SlotNoticed,
)
from windlass.tune.search.protocol import Suggestion
from windlass.tune.trial import ONE_CPU, Resources

__all__ = [
    "HEAD_LOST",
    "MAKERS",
    "CapacityChanged",
    "HeadOpened",
    "Input",
    "LimitReached",
    "SearchEnded",
    "TrialChosen",
    "TrialSuggested",
    "UserRequest",
]

HEAD_LOST = "head-lost"
"""`AttemptEnded.kind` of an attempt that ended with its head; not counted as an interruption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOpened:
    """Start of a sweep's head; `number` is 1 for the first one."""

    number: int
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSuggested:
    """Next trial, as suggested by the searcher."""

    suggestion: Suggestion
    resources: Resources = ONE_CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchEnded:
    """End of the search: there are no more trials."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialChosen:
    """Trial that the scheduler has chosen for a free slot; empty if it acted but chose none.

    `is_last`: it was called again because the searcher has no new trial right now.
    """

    trial: str
    is_last: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityChanged:
    """Change of the executor's total resources."""

    total: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitReached:
    """Limit on time or usage that has been reached."""

    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserRequest:
    """Request from a user, or from the command that restored the sweep; see `records.SWEEP_REQUESTED`."""

    what: str
    facts: Mapping[str, Any] = field(default_factory=dict)


Input = (
    HeadOpened
    | TrialSuggested
    | SearchEnded
    | TrialChosen
    | LimitReached
    | UserRequest
    | AttemptStarted
    | AttemptReported
    | AttemptSaved
    | AttemptEnded
    | SlotJoined
    | SlotLost
    | SlotNoticed
    | CapacityChanged
)
Data = dict[str, Any]


_ENDS = {end.value: end for end in AttemptOutcome}


def _suggested(data: Data) -> Input:
    shape = data.get("resources")
    return TrialSuggested(
        suggestion=Suggestion(config=data["config"], assigned=data["assigned"], note=data.get("note")),
        resources=ONE_CPU if shape is None else resources_from_data(shape),
    )


def _reported(data: Data) -> Input:
    return AttemptReported(
        trial=data["trial"], attempt=data["attempt"], metrics=data["metrics"], saved=data.get("saved", "")
    )


def _ended(data: Data) -> Input:
    return AttemptEnded(
        trial=data["trial"],
        attempt=data["attempt"],
        how=_ENDS[data["how"]],
        error=data.get("error", ""),
        kind=data.get("error_kind", ""),
    )


def _asked(data: Data) -> Input:
    return UserRequest(what=data["what"], facts={k: v for k, v in data.items() if k not in ("what", "acts")})


MAKERS: dict[str, Callable[[Data], Input]] = {
    records.SWEEP_OPENED: lambda data: HeadOpened(number=data["number"], **data["head"]),
    records.SWEEP_REQUESTED: _asked,
    records.TRIAL_SUGGESTED: _suggested,
    records.SEARCH_ENDED: lambda data: SearchEnded(why=data["why"]),
    records.TRIAL_CHOSEN: lambda data: TrialChosen(trial=data["trial"], is_last=data.get("is_last", False)),
    records.CHOICE_DEFERRED: lambda data: TrialChosen(trial="", is_last=data.get("is_last", False)),
    records.CAPACITY_CHANGED: lambda data: CapacityChanged(total=data["total"]),
    records.TRIAL_STARTED: lambda data: AttemptStarted(**data),
    records.TRIAL_REPORTED: _reported,
    records.TRIAL_SAVED: lambda data: AttemptSaved(**data),
    records.TRIAL_ENDED: _ended,
    records.SLOT_JOINED: lambda data: SlotJoined(**data),
    records.SLOT_LOST: lambda data: SlotLost(**data),
    records.SLOT_NOTICED: lambda data: SlotNoticed(**data),
    records.LIMIT_REACHED: lambda data: LimitReached(why=data["why"]),
}
"""Record kind -> function that reads its input back; derived kinds have none."""
