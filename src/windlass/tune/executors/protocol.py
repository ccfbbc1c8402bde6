"""Protocol between the controller and executors, on one machine, on Ray and at a site.

The controller starts attempts of trials, and the executor returns events. Both sides use the values below, which are
JSON except for `Work.trainable`. Workers add their attempt to every message, and the controller drops messages of
older attempts. An executor makes no decisions about trials.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Protocol

from windlass.tune.trial import Metrics, Resources

__all__ = [
    "AttemptEnded",
    "AttemptOutcome",
    "AttemptReported",
    "AttemptSaved",
    "AttemptStarted",
    "Event",
    "Executor",
    "Fit",
    "Go",
    "Halt",
    "Order",
    "Room",
    "SlotJoined",
    "SlotLost",
    "SlotNoticed",
    "StartAttempt",
    "TellsCapacity",
    "TellsNotes",
    "Waits",
    "Work",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Data shared by all trials of a sweep.

    Attributes:
        trainable: a subclass of `Trainable`, or a function of the configuration; what the user passed, unwrapped.
        name: the sweep's name.
        folder: the sweep's folder (local path), for sockets, spools and trial folders.
        storage: folder for checkpoints, as a path or URL (fsspec).
        checkpoint_every: iterations between two checkpoints of a class trainable; 0 saves only on request.
        checkpoint_at_end: whether a class trainable saves at its end.
        preload: modules that workers import before the first trial.
        reuse: `always`, `never`, or `auto`: a worker takes the next trial unless GPUs are declared.
        num_slots: maximum number of running trials; 0 for as many as the resources allow.
        seed: seed of the sweep.
        options: options for a specific executor.
    """

    trainable: type | Callable[..., Any]
    name: str
    folder: str
    storage: str
    checkpoint_every: int = 0
    checkpoint_at_end: bool = False
    preload: Sequence[str] = ()
    reuse: str = "auto"
    num_slots: int = 0
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------- controller to worker


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """Order to start an attempt of a trial.

    Attributes:
        restore_from: path or URL of the checkpoint to load; if empty, start from the beginning.
        iteration: `training_iteration` of that checkpoint; counting continues from it.
        credit: reports that may be sent before a `Go` is needed.
    """

    trial: str
    attempt: int
    config: dict[str, Any]
    resources: Resources
    restore_from: str = ""
    iteration: int = 0
    time_total_s: float = 0.0
    credit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Go:
    """Order to continue: send up to `credit` more reports; with `saves`, save a checkpoint first (`AttemptSaved`).

    Attributes:
        upto: the absolute form of `credit`: the last `training_iteration` that may be reported. Slots that outlive a
            controller use it, so that a repeated order does no harm.
    """

    trial: str
    attempt: int
    credit: int = 1
    saves: bool = False
    upto: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """Order to end an attempt, after saving if requested; `AttemptEnded` answers it."""

    trial: str
    attempt: int
    saves: bool = False


Order = Go | Halt

# ------------------------------------------------------------------------------------------- worker to controller


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """Event for an attempt that has started, with its slot, host and process."""

    trial: str
    attempt: int
    slot: str
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReported:
    """Event for a report from an attempt.

    Attributes:
        metrics: flat; holds `training_iteration`, `time_total_s` and, when the trainable is done, `done`.
        saved: path or URL of a checkpoint that was committed with this report; empty without.
    """

    trial: str
    attempt: int
    metrics: Metrics
    saved: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSaved:
    """Event for a committed checkpoint that the controller or `checkpoint_every` requested."""

    trial: str
    attempt: int
    iteration: int
    path: str


class AttemptOutcome(StrEnum):
    """Ways in which an attempt can end."""

    DONE = "done"  # the trainable returned, or reported `done`
    HALTED = "halted"  # as ordered
    FAILED = "failed"  # the trial's own error
    LOST = "lost"  # its worker or node is gone, or was preempted


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """Event for an attempt that has ended; its slot is free.

    Attributes:
        error: the trial's traceback for FAILED, a description for LOST.
        kind: name of the exception's type, such as `ValueError`; empty for LOST.
    """

    trial: str
    attempt: int
    how: AttemptOutcome
    error: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotJoined:
    """Event for a new slot; the controller checks again whether trials can start."""

    slot: str
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLost:
    """Event for the loss of a slot; its trial, if any, gets a separate `AttemptEnded` with LOST."""

    slot: str
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotNoticed:
    """Event for a slot whose machine is about to be taken away; `room` no longer counts it.

    The controller answers with an order to save and end its attempt, which then goes on in another slot.

    Attributes:
        gone_at: when the machine goes, in seconds since the epoch; 0 if unknown.
        why: reason in one sentence.
        trial, attempt: the attempt that it runs; empty and 0 if it is idle.
    """

    slot: str
    host: str = ""
    gone_at: float = 0.0
    why: str = ""
    trial: str = ""
    attempt: int = 0


Event = AttemptStarted | AttemptReported | AttemptSaved | AttemptEnded | SlotJoined | SlotLost | SlotNoticed


class Fit(StrEnum):
    """Answers to whether a trial can start."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Room:
    """Answer to whether a trial can start, with the reason in one sentence."""

    fit: Fit
    why: str = ""


class Executor(Protocol):
    """Executor of trials.

    All calls come from one thread; only `poll` and `close` block.
    """

    name: ClassVar[str]

    def open(self, work: Work) -> None:
        """Start slots, without waiting for all of them.

        Raises:
            WindlassError: the trainable cannot be sent to workers, or the site or cluster cannot be reached.
        """

    def room(self, resources: Resources) -> Room:
        """Return whether a trial with these resources can start now, later or never (no possible node fits it)."""

    def start(self, start: StartAttempt) -> None:
        """Start an attempt. Call this only if `room` returned NOW.

        An attempt always ends with exactly one `AttemptEnded`.
        """

    def send(self, order: Order) -> None:
        """Send an order to a running attempt; an order to an attempt that has ended is dropped."""

    def poll(self, timeout_s: float) -> list[Event]:
        """Return the events, in order for each trial.

        Blocks up to `timeout_s` (0: never) for the first.
        """

    def close(self) -> None:
        """End every attempt and slot without saving. Leaves no process. Idempotent."""


class CanReattach(Protocol):
    """Executor whose slots outlive their controller."""

    def reattach(self, running: Mapping[str, int]) -> Mapping[str, int]:
        """Take over the attempts of a controller that has died. Call this once, after `open`.

        Args:
            running: trials that the journal shows as running, with their attempts.

        Returns:
            The trials that still run, or whose end is known. `poll` returns their messages since then, from their
            spools. These may already be in the journal, so the controller drops reports of iterations that it has.
        """

    def detach(self) -> None:
        """Leave slots and attempts running for another controller."""


class OpeningInterruptedError(Exception):
    """Error for a request to stop that interrupts `open`."""


class OpensSlowly(Protocol):
    """Executor whose `open` may take minutes and can be interrupted."""

    def end_opening_when(self, is_asked: Callable[[], bool]) -> None:
        """Make `open` raise `OpeningInterruptedError` soon after `is_asked` returns True."""


class Waits(Protocol):
    """Executor that can say why no trial runs yet, for example because slots are still starting."""

    def waiting_for(self) -> str:
        """Return the reason why no trial runs yet, in one sentence."""


class TellsCapacity(Protocol):
    """Executor that knows its total resources.

    They are read after `open`, `SlotJoined` and `SlotLost`, and journalled.
    """

    def capacity(self) -> Mapping[str, float]:
        """Return the total resources that trials may use, by name."""


class TellsNotes(Protocol):
    """Executor that observes running trials, for example where one hangs.

    Its notes are shown, but not journalled.
    """

    def notes(self) -> Sequence[tuple[str, str]]:
        """Return new notes as (trial, text).

        The first line is a summary, further lines are a stack.
        """
