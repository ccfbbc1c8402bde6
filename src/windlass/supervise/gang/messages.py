"""Messages between replicas and their leader, and the commands that the pure cores give to their shells.

Both directions carry whole states, never changes: a lost message is repaired by the next one and a duplicate changes
nothing. The order with the highest epoch counts; a leader of a lower epoch is ignored.

Commands without fields are plain classes: every dataclass adds a third of a millisecond to each job's start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Protocol, Union

from windlass.core.dataclass import dataclass
from windlass.record.frames import Record
from windlass.record.state import End, RunFacts, TaskFacts

__all__ = [
    "Command",
    "HandOver",
    "Journal",
    "JournalView",
    "KillTree",
    "Leave",
    "OpenGate",
    "Order",
    "Phase",
    "Release",
    "ReplicaStatus",
    "Respawn",
    "SendOrder",
    "SendStatus",
    "SignalProcess",
    "Spawn",
    "Step",
    "StopLevel",
    "WriteControl",
]


class Phase(str, Enum):
    """Phase of a replica within its attempt."""

    IDLE = "idle"
    READY = "ready"
    STARTED = "started"
    ENDED = "ended"


class Step(str, Enum):
    """Step of an attempt that the leader has ordered."""

    WAIT = "wait"
    GATHER = "gather"
    RUN = "run"
    STOP = "stop"
    LEAVE = "leave"


class StopLevel(int, Enum):
    """Level of a stop: ask the code, signal the code, kill everything."""

    NONE = 0
    ASK = 1
    TERM = 2
    KILL = 3


@dataclass(frozen=True)
class ReplicaStatus:
    """Complete status of one replica, sent to its leader.

    Attributes:
        attempt: the attempt that `phase` and `end` refer to.
        port: a port that was free on this replica's host when it became ready.
        notice: why the job must stop on its node (a signal to the supervisor); empty otherwise.
        notice_cause: cause according to the scheduler; empty if unknown.
        step_s: seconds per step, as reported by its code; 0 if unknown.
    """

    rank: int
    attempt: int = 0
    phase: Phase = Phase.IDLE
    host: str = ""
    address: str = ""
    port: int = 0
    end: End | None = None
    notice: str = ""
    notice_cause: str = ""
    step_s: float = 0.0

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        data = dict(vars(self), phase=self.phase.value, end=self.end.to_data() if self.end else None)
        return {"status": data}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ReplicaStatus:
        """Decode `to_data`."""
        fields = dict(data["status"])
        fields["phase"] = Phase(fields["phase"])
        fields["end"] = End.from_data(fields["end"]) if fields["end"] else None
        return cls(**fields)


@dataclass(frozen=True)
class Order:
    """Complete order from a leader; every replica gets the same one.

    Attributes:
        checkpoint: number of the newest request to save before a stop; code handles each once.
        deadline: wall time at which this job ends; 0 if there is none.
        code: exit code of the replicas when they leave.
        gpus: comma-separated ids leased for the whole gang; replica r takes the r-th share.
        hosts: comma-separated `name=address` of all replicas, by rank; empty from a leader that took over.
        evaluates, evaluated_step: path and step of the checkpoint that this attempt evaluates; empty for other tasks.
    """

    epoch: int
    attempt: int = 0
    step: Step = Step.WAIT
    address: str = ""
    port: int = 0
    level: StopLevel = StopLevel.NONE
    cause: str = ""
    checkpoint: int = 0
    deadline: float = 0.0
    code: int = 0
    gpus: str = ""
    hosts: str = ""
    evaluates: str = ""
    evaluated_step: int = -1

    def to_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"order": dict(vars(self), step=self.step.value, level=int(self.level))}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Order:
        """Decode `to_data`."""
        fields = dict(data["order"])
        fields["step"], fields["level"] = Step(fields["step"]), StopLevel(fields["level"])
        return cls(**fields)

    def but(self, **changes: Any) -> Order:
        """Return a copy of the order with some fields changed."""
        return replace(self, **changes)


class JournalView(Protocol):
    """Part of the journal that a core uses: the facts about its task, and durable appends."""

    def refresh(self) -> None:
        """Read everything appended so far, bypassing the caches of network file systems."""

    def task(self) -> TaskFacts:
        """Return the current facts, including this replica's records."""

    def append(self, kind: str, **data: Any) -> Record:
        """Record a fact, which is durable on return; the task and writer are filled in."""


class Journal(JournalView, Protocol):
    """Journal of the run as one replica reads and writes it.

    Attributes:
        facts: facts read so far.
        history: records from before it was opened.
    """

    facts: RunFacts
    history: list[Record]

    def poll(self) -> None:
        """Read what was appended since the last call."""

    def widen(self) -> None:
        """Read the whole run from now on. Idempotent."""

    def narrow(self) -> None:
        """Read only what this replica writes. Idempotent."""

    def close(self) -> None:
        """Close the file that this replica writes."""


@dataclass(frozen=True)
class Spawn:
    """Command: fork the user's process behind a closed gate, and pass its identity to the core."""

    attempt: int
    address: str
    port: int


class OpenGate:
    """Command: let the forked process execute the user's command."""

    __slots__ = ()


class SignalProcess:
    """Command: send SIGTERM to the user's process."""

    __slots__ = ()


class KillTree:
    """Command: send SIGKILL to everything that the user's process started, until nothing is alive."""

    __slots__ = ()


@dataclass(frozen=True)
class WriteControl:
    """Command: notify the user's code through its control file."""

    is_stop_wanted: bool
    checkpoint: int
    reason: str
    deadline: float = 0.0


@dataclass(frozen=True)
class SendStatus:
    """Command: send the replica's status to the leader."""

    status: ReplicaStatus


@dataclass(frozen=True)
class SendOrder:
    """Command: send the leader's order to every replica, including this one."""

    order: Order


@dataclass(frozen=True)
class Respawn:
    """Command: start the supervisor of a missing replica, if the backend can do that."""

    rank: int


class Release:
    """Command: clean up at the end of the task: write the last records and release the leases."""

    __slots__ = ()


class HandOver:
    """Command: leave the task to the job's next link, and prepare that if the backend can."""

    __slots__ = ()


@dataclass(frozen=True)
class Leave:
    """Command: exit the supervisor with this code."""

    code: int


Command = Union[
    Spawn, OpenGate, SignalProcess, KillTree, WriteControl, SendStatus, SendOrder, Respawn, Release, HandOver, Leave
]
