"""Events and commands of the controller of rollouts; its other commands are records, see `records`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from windlass.post.rollout.types import SampleId
from windlass.post.samples.records import CommitStep, DropGroup, PlanGroup, ReserveBatch, Scored

__all__ = [
    "BatchWanted",
    "CancelSamples",
    "CheckpointCommitted",
    "Claim",
    "Command",
    "Event",
    "Give",
    "GroupRejected",
    "LearnerRestarted",
    "Load",
    "SampleGenerated",
    "SampleScored",
    "StopRequested",
    "UseBatch",
    "Wait",
    "WeightsLoaded",
    "WeightsPublished",
    "WorkerJoined",
    "WorkerLeft",
]

# ---------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerJoined:
    """A worker is ready, or again after a lost connection.

    Attributes:
        num_slots: most samples that it wants at the same time.
        version: version of its weights; None: it has none.
        holds: samples that it still generates.
    """

    worker: str
    num_slots: int
    version: int | None = None
    holds: tuple[SampleId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLeft:
    """A worker left, died, or has not been heard of for too long.

    Samples that it sends later are still taken.
    """

    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLoaded:
    """A worker starts samples with this version from now on."""

    worker: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPublished:
    """A step is finished, and its weights can be loaded.

    Must follow each batch before the next one is wanted.
    """

    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleGenerated:
    """A sample is finished and waits to be scored; its slot is free.

    May be left out: `SampleScored` implies it.
    """

    worker: str
    id: SampleId
    oldest_version: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleScored:
    """A sample has its rewards; it counts, and must be stored, if `Scored` follows.

    Attributes:
        rejected: on a group's last sample, reason not to train on the group, such as equal rewards.
    """

    worker: str
    id: SampleId
    oldest_version: int
    length: int
    rejected: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRejected:
    """A group should be replaced; without effect once it is reserved."""

    group: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchWanted:
    """The learner finished a number of steps and wants the batch of the next one.

    May be repeated.
    """

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted:
    """A checkpoint with this number of finished steps is durable."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerRestarted:
    """The learner went back to a checkpoint of this step; workers live on."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """The run ends: no sample is started any more."""


Event: TypeAlias = (
    SampleScored
    | SampleGenerated
    | BatchWanted
    | WeightsLoaded
    | WeightsPublished
    | WorkerJoined
    | WorkerLeft
    | GroupRejected
    | CheckpointCommitted
    | LearnerRestarted
    | StopRequested
)

# -------------------------------------------------------------------------------------------------------- commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A sample to generate with weights of `oldest_version` or newer ones."""

    id: SampleId
    oldest_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Give:
    """Send samples to a worker."""

    worker: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Let a worker load a version.

    At once if its engine can load with samples in progress, otherwise when it has none.
    """

    worker: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelSamples:
    """Let a worker end samples that are not needed; what it has of them is ignored."""

    worker: str
    ids: tuple[SampleId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UseBatch:
    """Train on these groups; the same ones whenever this step's batch is wanted. None: no prompt is left."""

    step: int
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Who waits, for whom, and since when.

    Attributes:
        who: `learner`, or a worker.
        what: a worker waits for `weights` that it was told to load, or for the learner to want or finish a `batch`.
        on: workers that generate what is waited for, or `learner`, which scores it; empty: no worker does.
        groups: groups that the learner waits for; empty if they are not started.
    """

    who: str
    what: Literal["samples", "weights", "batch"]
    since_s: float
    on: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()


Command: TypeAlias = (
    PlanGroup | Scored | DropGroup | ReserveBatch | CommitStep | Give | Load | CancelSamples | UseBatch | Wait
)
