"""What replicas and their leader tell one another, and what the pure cores ask their shell to do.

Both directions carry whole states, never changes: a lost message is repaired by the next one and a doubled one
changes nothing. The order with the highest epoch counts; a leader of a lower epoch is not obeyed.

Commands without fields are plain classes: every dataclass takes a third of a millisecond of each job's start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Protocol, Union

from windlass.core.dataclass import dataclass
from windlass.record.frames import Record
from windlass.record.state import End, Task

__all__ = [
    "Command",
    "HandOver",
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
    """Where a replica is within the attempt it speaks about."""

    IDLE = "idle"
    READY = "ready"
    STARTED = "started"
    ENDED = "ended"


class Step(str, Enum):
    """What the leader wants of the gang."""

    WAIT = "wait"
    GATHER = "gather"
    RUN = "run"
    STOP = "stop"
    LEAVE = "leave"


class StopLevel(int, Enum):
    """How hard to stop: ask the code, signal it, kill all of it."""

    NONE = 0
    ASK = 1
    TERM = 2
    KILL = 3


@dataclass(frozen=True)
class ReplicaStatus:
    """The whole state of one replica, for its leader.

    Attributes:
        attempt: the attempt that `phase` and `end` are about.
        port: a port that was free on this replica's host when it became ready.
        notice: why its node wants the job to stop (a signal to the supervisor), empty otherwise.
        notice_cause: what the scheduler says that is; empty: not known.
        step_s: seconds that its code takes for a step, as it reports them; 0: not known.
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
        """The JSON form."""
        data = dict(vars(self), phase=self.phase.value, end=self.end.to_data() if self.end else None)
        return {"status": data}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> ReplicaStatus:
        """Read back `to_data`."""
        fields = dict(data["status"])
        fields["phase"] = Phase(fields["phase"])
        fields["end"] = End.from_data(fields["end"]) if fields["end"] else None
        return cls(**fields)


@dataclass(frozen=True)
class Order:
    """The whole wish of a leader; every replica gets the same one.

    Attributes:
        checkpoint: number of the newest request to save before a stop; code answers each once.
        deadline: wall time at which this job ends, 0 for none.
        code: exit code with which to leave.
        gpus: ids leased for the whole gang, comma separated; replica r takes the r-th share.
        hosts: `name=address` of every replica by rank, comma separated; empty from a leader that took over.
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

    def to_data(self) -> dict[str, Any]:
        """The JSON form."""
        return {"order": dict(vars(self), step=self.step.value, level=int(self.level))}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Order:
        """Read back `to_data`."""
        fields = dict(data["order"])
        fields["step"], fields["level"] = Step(fields["step"]), StopLevel(fields["level"])
        return cls(**fields)

    def but(self, **changes: Any) -> Order:
        """The same order with some fields changed."""
        return replace(self, **changes)


class JournalView(Protocol):
    """The journal as a core sees it: the facts of its own task, and a pen."""

    def refresh(self) -> None:
        """Take in what anybody has appended, also what a network file system would show only later."""

    def task(self) -> Task:
        """The facts as of now, own records included."""

    def append(self, kind: str, **data: Any) -> Record:
        """Record a fact durably before this returns; task and writer are filled in."""


@dataclass(frozen=True)
class Spawn:
    """Fork the user's process behind a closed gate and tell the core its identity."""

    attempt: int
    address: str
    port: int


class OpenGate:
    """Let the forked process execute the user's command."""

    __slots__ = ()


class SignalProcess:
    """Send SIGTERM to the user's process."""

    __slots__ = ()


class KillTree:
    """SIGKILL everything the user's process left behind, until nothing lives."""

    __slots__ = ()


@dataclass(frozen=True)
class WriteControl:
    """Tell the user's code through its control file."""

    is_stop_wanted: bool
    checkpoint: int
    reason: str
    deadline: float = 0.0


@dataclass(frozen=True)
class SendStatus:
    """Send the replica's state to the leader."""

    status: ReplicaStatus


@dataclass(frozen=True)
class SendOrder:
    """Send the leader's wish to every replica, this one included."""

    order: Order


@dataclass(frozen=True)
class Respawn:
    """Start the supervisor of a replica that is not there, where the backend can."""

    rank: int


class Release:
    """The task ended: write what belongs to the end, give leases back."""

    __slots__ = ()


class HandOver:
    """The next link of the job goes on with the task: prepare it, where the backend can."""

    __slots__ = ()


@dataclass(frozen=True)
class Leave:
    """Exit the supervisor with this code."""

    code: int


Command = Union[
    Spawn, OpenGate, SignalProcess, KillTree, WriteControl, SendStatus, SendOrder, Respawn, Release, HandOver, Leave
]
