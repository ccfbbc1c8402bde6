"""Where trials run: one small protocol between the controller and slots, the same on one machine, Ray or a site.

The controller starts attempts of trials, the executor brings back what happened; both sides speak in the values below,
which are JSON but for `Work.trainable`. Every start names an attempt: a worker tells its attempt with everything, and
the controller drops what an older attempt says. An executor decides nothing about trials.
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
    "StartAttempt",
    "TellsCapacity",
    "TellsNotes",
    "Waits",
    "Work",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What all trials of a sweep share.

    Attributes:
        trainable: a subclass of `Trainable`, or a function of the configuration; what the user passed, unwrapped.
        name: the sweep's name.
        folder: the sweep's folder (local path), for sockets, spools and trial folders.
        storage: where checkpoints are kept: a folder or the URL of one (fsspec).
        checkpoint_every: iterations between two checkpoints of a class trainable; 0: only when asked.
        checkpoint_at_end: whether a class trainable saves at its end.
        preload: modules that workers import before the first trial.
        reuse: `always`, `never`, or `auto`: a worker takes the next trial unless GPUs are declared.
        num_slots: how many trials may run at once; 0: as many as the resources of the place allow.
        seed: of the sweep.
        options: what one kind of executor alone understands.
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
    """Begin an attempt of a trial.

    Attributes:
        restore_from: path or URL of the checkpoint to load; empty begins anew.
        iteration: `training_iteration` of that checkpoint; counting goes on from it.
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
    """The answer to reports: send so many more; with `saves`, save a checkpoint first and tell it (`AttemptSaved`).

    Attributes:
        upto: the same as `credit` and absolute: reports up to this `training_iteration` may be sent. For slots that
            outlive a controller: an order that comes twice then does no harm.
    """

    trial: str
    attempt: int
    credit: int = 1
    saves: bool = False
    upto: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """The answer to a report, or out of the blue: end this attempt, after saving if so; answered by `AttemptEnded`."""

    trial: str
    attempt: int
    saves: bool = False


Order = Go | Halt

# ------------------------------------------------------------------------------------------- worker to controller


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """The attempt runs: its slot, host and process, for people."""

    trial: str
    attempt: int
    slot: str
    host: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptReported:
    """One report.

    Attributes:
        metrics: flat; holds `training_iteration`, `time_total_s` and, when the trainable says it is done, `done`.
        saved: path or URL of a checkpoint that was committed with this report; empty without.
    """

    trial: str
    attempt: int
    metrics: Metrics
    saved: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptSaved:
    """A checkpoint that the controller asked for, or that `checkpoint_every` called for, is committed."""

    trial: str
    attempt: int
    iteration: int
    path: str


class AttemptOutcome(StrEnum):
    """How an attempt ended."""

    DONE = "done"  # the trainable returned, or said `done`
    HALTED = "halted"  # as it was told
    FAILED = "failed"  # the trial's own error
    LOST = "lost"  # its worker or node is gone, or was taken away


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """The attempt is over and its slot is free.

    Attributes:
        error: for FAILED the trial's own traceback, for LOST what is known, in words.
        kind: name of the exception's type, such as `ValueError`; empty for LOST.
    """

    trial: str
    attempt: int
    how: AttemptOutcome
    error: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotJoined:
    """Room for trials has appeared: told for people, and so that the controller looks again."""

    slot: str
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLost:
    """Room for trials is gone; its trial, if any, gets its own `AttemptEnded` with LOST."""

    slot: str
    why: str = ""


Event = AttemptStarted | AttemptReported | AttemptSaved | AttemptEnded | SlotJoined | SlotLost


class Fit(StrEnum):
    """Whether a trial can start."""

    NOW = "now"
    LATER = "later"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Room:
    """An answer, with what is in the way in one sentence."""

    fit: Fit
    why: str = ""


class Executor(Protocol):
    """A kind of place for trials. All calls come from one thread; only `poll` and `close` block."""

    name: ClassVar[str]

    def open(self, work: Work) -> None:
        """Bring up slots, or begin to.

        Raises:
            WindlassError: the trainable cannot be sent to workers, or the place does not answer.
        """

    def room(self, resources: Resources) -> Room:
        """Whether a trial of this shape would start now, later, or never: no node, present or permitted, fits it."""

    def start(self, start: StartAttempt) -> None:
        """Begin an attempt; call only where `room` says NOW. Ends with exactly one `AttemptEnded`, whatever happens."""

    def send(self, order: Order) -> None:
        """Tell a running attempt something; silently dropped when the attempt is over."""

    def poll(self, timeout_s: float) -> list[Event]:
        """Everything that happened, in order per trial; blocks up to `timeout_s` (0: not at all) for the first."""

    def close(self) -> None:
        """End every attempt and slot, without saving, and leave no process behind. Idempotent."""


class CanReattach(Protocol):
    """Slots outlive their controller: a new one finds them again."""

    def reattach(self, held: Mapping[str, int]) -> Mapping[str, int]:
        """Take over after another controller's death; call once, after `open`.

        Args:
            held: trials that the journal shows as running, with their attempts.

        Returns:
            Those that still run, or whose end is known. What they said meanwhile comes by `poll`, from their spools:
            also what the journal holds already, so the controller drops reports up to the newest iteration it has.
        """

    def detach(self) -> None:
        """Leave slots and attempts running, for another controller."""


class OpeningInterruptedError(Exception):
    """Raised by `open` of an executor that was asked to end before it was ready."""


class OpensSlowly(Protocol):
    """`open` may take minutes, and asks now and then whether it is still wanted."""

    def end_opening_when(self, is_asked: Callable[[], bool]) -> None:
        """From now on `open` raises `OpeningInterruptedError` soon after this answers True."""


class Waits(Protocol):
    """Nothing runs, and there is room in future: says why, for people."""

    def waiting_for(self) -> str:
        """One sentence."""


class TellsCapacity(Protocol):
    """Knows what the place has: asked after `open` and after every `SlotJoined` and `SlotLost`; journalled."""

    def capacity(self) -> Mapping[str, float]:
        """Totals of what trials may use, by resource."""


class TellsNotes(Protocol):
    """Sees what people should know of running trials, such as where one hangs: shown, not journalled."""

    def notes(self) -> Sequence[tuple[str, str]]:
        """(trial, text), each once; a text's first line says it all, further lines are a stack."""
