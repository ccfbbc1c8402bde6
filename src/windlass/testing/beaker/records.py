"""Records of the fake Beaker: experiments, tasks, jobs, datasets and so on.

Records change while the fake runs, always under the lock of `BeakerState`; tests may read them without it.
"""

from __future__ import annotations

import enum
import secrets
import subprocess
import time
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from windlass.core.dataclass import dataclass

__all__ = [
    "CancelCode",
    "Cluster",
    "Dataset",
    "Event",
    "Group",
    "Node",
    "Status",
    "StoredExperiment",
    "StoredImage",
    "StoredJob",
    "StoredLogLine",
    "StoredSecret",
    "StoredTask",
    "Workspace",
    "new_id",
]

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


class Status(enum.IntEnum):
    """Status of a workload, with the numbers of the protocol's `WorkloadStatus`."""

    SUBMITTED = 1
    QUEUED = 2
    INITIALIZING = 3
    RUNNING = 4
    STOPPING = 5
    UPLOADING_RESULTS = 6
    CANCELED = 7
    SUCCEEDED = 8
    FAILED = 9
    READY_TO_START = 10

    @property
    def is_final(self) -> bool:
        """Return whether the state is final."""
        return self in (Status.CANCELED, Status.SUCCEEDED, Status.FAILED)


class CancelCode(enum.IntEnum):
    """Reason for a cancelation, with the numbers of the protocol's `CancelationCode`."""

    SYSTEM_PREEMPTION = 1
    USER_PREEMPTION = 2
    IDLE = 3
    MANUAL = 4
    TIMEOUT = 5
    NODE_UNAVAILABLE = 6
    IMPOSSIBLE_TO_SCHEDULE = 7
    SIBLING_TASK_FAILED = 8
    SIBLING_TASK_PREEMPTION = 9
    HEALTHCHECK_FAILED = 10
    SIBLING_TASK_RETRY = 11
    NODE_UNHEALTHY = 12


def new_id() -> str:
    """Return an id in Beaker's format: 26 letters and digits that sort by time."""
    number = (time.time_ns() // 1_000_000) << 80 | secrets.randbits(80)
    letters = []
    for _ in range(26):
        letters.append(_ALPHABET[number & 31])
        number >>= 5
    return "".join(reversed(letters))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLogLine:
    """Line of a job's output, without its newline; timestamps are unique within a job."""

    at_ns: int
    message: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Event of a job, from the scheduler or a node."""

    at_ns: int
    status: str
    message: str


@dataclass(slots=True, kw_only=True)
class StoredSecret:
    """Secret of a workspace: name and value."""

    name: str
    value: str
    created_ns: int = field(default_factory=time.time_ns)
    updated_ns: int = field(default_factory=time.time_ns)


@dataclass(slots=True, kw_only=True)
class Workspace:
    """Workspace that contains experiments; `name` is the full name, `owner/name`."""

    name: str
    id: str = field(default_factory=new_id)
    created_ns: int = field(default_factory=time.time_ns)
    description: str = ""
    budget_id: str = ""
    is_archived: bool = False
    maximum_priority: int = 5
    slot_limit: int = 0
    secrets: dict[str, StoredSecret] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Node:
    """Node of a cluster, with its loopback address in `address`."""

    hostname: str
    address: str
    id: str = field(default_factory=new_id)
    is_cordoned: bool = False


@dataclass(slots=True, kw_only=True)
class Cluster:
    """Cluster of nodes, named `organization/name`."""

    name: str
    num_nodes: int = 4
    gpus_per_node: int = 8
    gpu_type: int = 1
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    id: str = field(default_factory=new_id)
    created_ns: int = field(default_factory=time.time_ns)
    nodes: list[Node] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Dataset:
    """Dataset whose files are in `folder`; a committed dataset never changes."""

    name: str
    folder: Path
    workspace_id: str
    description: str = ""
    id: str = field(default_factory=new_id)
    created_ns: int = field(default_factory=time.time_ns)
    committed_ns: int = 0
    source_job: str = ""
    digests: dict[str, bytes] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class StoredImage:
    """Record of an image; the fake stores no layers and pulls nothing."""

    name: str
    author: str
    workspace_id: str
    docker_id: str
    description: str = ""
    tag: str = ""
    id: str = field(default_factory=new_id)
    created_ns: int = field(default_factory=time.time_ns)
    committed_ns: int = 0


@dataclass(slots=True, kw_only=True)
class Group:
    """Group of experiments."""

    name: str
    workspace_id: str
    description: str = ""
    id: str = field(default_factory=new_id)
    created_ns: int = field(default_factory=time.time_ns)
    modified_ns: int = field(default_factory=time.time_ns)
    experiment_ids: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class StoredJob:
    """Job that runs one replica of a task once.

    Attributes:
        retry_ancestor: the job that it replaces after a preemption or a retry.
    """

    task: StoredTask
    id: str = field(default_factory=new_id)
    created_ns: int = field(default_factory=time.time_ns)
    retry_ancestor: str = ""
    scheduled_ns: int = 0
    ready_ns: int = 0
    started_ns: int = 0
    exited_ns: int = 0
    failed_ns: int = 0
    canceled_ns: int = 0
    finalized_ns: int = 0
    exit_code: int | None = None
    message: str = ""
    scheduling_message: str = ""
    canceled_for: str = ""
    canceled_code: CancelCode | None = None
    node: Node | None = None
    leader: StoredJob | None = None
    results: Dataset | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    log: list[StoredLogLine] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    has_ended: bool = False
    deadlines: dict[str, float] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        """Return the state, derived from the times as the real service does."""
        if self.finalized_ns:
            if self.canceled_ns:
                return Status.CANCELED
            return Status.SUCCEEDED if self.exit_code == 0 and not self.failed_ns else Status.FAILED
        if self.canceled_ns:
            return Status.STOPPING
        stages = (
            (self.exited_ns, Status.UPLOADING_RESULTS),
            (self.started_ns, Status.RUNNING),
            (self.ready_ns, Status.READY_TO_START),
            (self.scheduled_ns, Status.INITIALIZING),
        )
        return next((status for at_ns, status in stages if at_ns), Status.QUEUED)

    @property
    def text(self) -> str:
        """Return all output of the job."""
        return "".join(f"{line.message.decode(errors='replace')}\n" for line in self.log)


@dataclass(slots=True, kw_only=True, eq=False)
class StoredTask:
    """Task of an experiment, or one replica of a task."""

    experiment: StoredExperiment
    spec: Mapping[str, Any]
    name: str
    group_id: str = ""
    rank: int = 0
    size: int = 1
    id: str = field(default_factory=new_id)
    created_ns: int = field(default_factory=time.time_ns)
    jobs: list[StoredJob] = field(default_factory=list)

    @property
    def job(self) -> StoredJob:
        """Return the task's latest job."""
        return self.jobs[-1]

    @property
    def is_replica(self) -> bool:
        """Return whether the task is one of several replicas that start together."""
        return bool(self.group_id)


@dataclass(slots=True, kw_only=True, eq=False)
class StoredExperiment:
    """Submitted experiment with its tasks and state."""

    name: str
    spec: Mapping[str, Any]
    workspace_id: str
    budget_id: str
    id: str = field(default_factory=new_id)
    created_ns: int = field(default_factory=time.time_ns)
    description: str = ""
    canceled_ns: int = 0
    canceled_for: str = ""
    num_retries: int = 0
    tasks: list[StoredTask] = field(default_factory=list)

    @property
    def jobs(self) -> list[StoredJob]:
        """Return all jobs of all tasks, oldest first."""
        return sorted((job for task in self.tasks for job in task.jobs), key=lambda job: (job.created_ns, job.id))

    @property
    def status(self) -> Status:
        """Return one state for all tasks: that of the least advanced task or, if all have ended, the worst."""
        now = {task.job.status for task in self.tasks}
        order = (
            Status.RUNNING,
            Status.STOPPING,
            Status.UPLOADING_RESULTS,
            Status.READY_TO_START,
            Status.INITIALIZING,
            Status.QUEUED,
            Status.FAILED,
            Status.CANCELED,
            Status.SUCCEEDED,
        )
        return next(status for status in order if status in now)
