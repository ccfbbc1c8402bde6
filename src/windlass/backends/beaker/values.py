"""Beaker's experiments, jobs, images and so on as plain values; times are nanoseconds since 1970, 0 means never."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from windlass.core.dataclass import dataclass

__all__ = [
    "ENDED",
    "BeakerEvent",
    "BeakerExperiment",
    "BeakerFile",
    "BeakerGroup",
    "BeakerImage",
    "BeakerJob",
    "BeakerLogLine",
    "BeakerWorkspace",
    "ExperimentRef",
]

ENDED = frozenset({"canceled", "succeeded", "failed"})
"""Final statuses, which change only if the experiment is restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentRef:
    """Reference to an existing experiment.

    Attributes:
        name: full name without the author.
        url: its page on Beaker's own site.
    """

    id: str
    name: str
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BeakerExperiment:
    """State of an experiment.

    Attributes:
        status: Beaker's name: submitted, queued, initializing, ready_to_start, running, stopping, uploading_results,
            canceled, succeeded, failed.
        tasks: id of each task (each replica is one), in the order of the ranks.
        canceled_for: who or what cancelled it, as Beaker reports it.
    """

    id: str
    name: str
    status: str
    tasks: Sequence[str] = ()
    description: str = ""
    workspace_id: str = ""
    author_id: str = ""
    created_ns: int = 0
    canceled_for: str = ""

    @property
    def is_over(self) -> bool:
        """Return True if the experiment has ended."""
        return self.status in ENDED


@dataclass(frozen=True, slots=True, kw_only=True)
class BeakerJob:
    """Start of a replica: after a preemption or a retry, Beaker makes a new job for the same task.

    Attributes:
        task: name of the task.
        attempt: how many jobs of its task were made before it, plus one.
        canceled_code: why it was cancelled, such as `system_preemption`; empty if it was not.
        retry_of: the task's first job, if this is a later one.
        results: id of the results dataset.
        scheduling: the scheduler's last message about why it does not run.
    """

    id: str
    task: str
    task_id: str
    rank: int
    size: int
    attempt: int
    status: str
    is_leader: bool = False
    node: str = ""
    created_ns: int = 0
    scheduled_ns: int = 0
    ready_ns: int = 0
    started_ns: int = 0
    exited_ns: int = 0
    finalized_ns: int = 0
    exit_code: int | None = None
    message: str = ""
    canceled_for: str = ""
    canceled_code: str = ""
    scheduling: str = ""
    retry_of: str = ""
    results: str = ""

    @property
    def is_over(self) -> bool:
        """Return True if Beaker has finalized the job; until then logs and results may still arrive."""
        return self.finalized_ns > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BeakerEvent:
    """Event in a job's history, with the number of times it occurred."""

    status: str
    message: str
    num_times: int
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BeakerLogLine:
    """Line of a job's output, or a part of one, and when Beaker received it."""

    at_ns: int
    message: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BeakerFile:
    """File in a dataset; its path is relative to the dataset's root."""

    path: str
    size: int
    updated_ns: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeakerImage:
    """Image stored at Beaker.

    Attributes:
        docker_id: digest of the image's configuration, `sha256:...`: the same id is the same image.
        is_committed: whether the upload is complete; it can no longer change.
    """

    id: str
    name: str
    docker_id: str
    description: str = ""
    docker_tag: str = ""
    is_committed: bool = True
    created_ns: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BeakerWorkspace:
    """Workspace; a slot is a GPU, and a limit of 0 means no limit."""

    id: str
    name: str
    description: str = ""
    budget_id: str = ""
    is_archived: bool = False
    slot_limits: Mapping[str, int]
    slots_used: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeakerGroup:
    """Group of experiments to compare."""

    id: str
    name: str
    description: str = ""
