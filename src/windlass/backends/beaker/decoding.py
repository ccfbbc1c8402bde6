"""Conversion of Beaker's messages to plain values."""

from __future__ import annotations

from typing import Any

from beaker import beaker_pb2 as messages

from windlass.backends.beaker.values import (
    BeakerEvent,
    BeakerExperiment,
    BeakerFile,
    BeakerGroup,
    BeakerImage,
    BeakerJob,
    BeakerWorkspace,
)

__all__ = [
    "cancelation_name",
    "event_of",
    "file_of",
    "group_of",
    "image_of",
    "job_of",
    "nanoseconds",
    "rank_of",
    "seen_of",
    "status_name",
    "workspace_of",
]


def nanoseconds(message: Any, field: str) -> int:
    """Return a time in a message as nanoseconds since 1970; 0 if it is not set."""
    return int(getattr(message, field).ToNanoseconds()) if message.HasField(field) else 0


def status_name(number: int) -> str:
    """Return Beaker's name for a status, such as `running`; an unknown status is returned as its number."""
    if number not in messages.WorkloadStatus.values():
        return f"status {number}"
    return str(messages.WorkloadStatus.Name(number)).removeprefix("STATUS_").lower()


def seen_of(workload: messages.Workload) -> BeakerExperiment:
    """Convert an experiment's message."""
    experiment = workload.experiment
    return BeakerExperiment(
        id=experiment.id,
        name=experiment.name.rpartition("/")[2],
        status=status_name(workload.status),
        tasks=tuple(task.id for task in sorted(experiment.tasks, key=lambda task: rank_of(task.system_details) or 0)),
        description=experiment.description,
        workspace_id=experiment.workspace_id,
        author_id=experiment.author_id,
        created_ns=nanoseconds(experiment, "created"),
        canceled_for=experiment.canceled_for,
    )


def job_of(job: messages.Job, task: str, attempt: int) -> BeakerJob:
    """Convert the message of a job, which is one start of one replica."""
    status, group = job.status, job.system_details.replica_group_details
    code = status.canceled_code if status.HasField("canceled_code") else 0
    return BeakerJob(
        id=job.id,
        task=task,
        task_id=job.task_id,
        rank=group.rank,
        size=max(1, group.size),
        attempt=attempt,
        status=status_name(status.status),
        is_leader=group.is_leader_replica,
        node=job.assignment_details.node_id,
        created_ns=nanoseconds(status, "created"),
        scheduled_ns=nanoseconds(status, "scheduled"),
        ready_ns=nanoseconds(status, "ready"),
        started_ns=nanoseconds(status, "started"),
        exited_ns=nanoseconds(status, "exited"),
        finalized_ns=nanoseconds(status, "finalized"),
        exit_code=status.exit_code if status.HasField("exit_code") else None,
        message=status.message,
        canceled_for=status.canceled_for,
        canceled_code=cancelation_name(code),
        scheduling=status.failed_scheduling_message,
        retry_of=job.retry_ancestor_id,
        results=job.assignment_details.result_dataset_id,
    )


def event_of(event: messages.SummarizedJobEvent) -> BeakerEvent:
    """Convert the message of a job's event."""
    return BeakerEvent(
        status=event.status,
        message=event.latest_message,
        num_times=event.occurrences,
        first_ns=nanoseconds(event, "earliest_occurrence"),
        last_ns=nanoseconds(event, "latest_occurrence"),
    )


def file_of(file: messages.DatasetFile) -> BeakerFile:
    """Convert the message of a file in a dataset."""
    digest = ""
    if file.HasField("digest"):
        name = messages.DatasetFile.AlgorithmType.Name(file.digest.algorithm).removeprefix("ALGORITHM_TYPE_").lower()
        digest = f"{name}:{file.digest.value.hex()}"
    return BeakerFile(path=file.path, size=file.size, updated_ns=nanoseconds(file, "updated"), digest=digest)


def image_of(image: messages.Image) -> BeakerImage:
    """Convert an image's message."""
    return BeakerImage(
        id=image.id,
        name=image.full_name or image.name,
        docker_id=image.docker_id,
        description=image.description,
        docker_tag=image.docker_tag,
        is_committed=image.HasField("committed"),
        created_ns=nanoseconds(image, "created"),
        size=image.size,
    )


def workspace_of(workspace: messages.Workspace) -> BeakerWorkspace:
    """Convert a workspace's message."""
    return BeakerWorkspace(
        id=workspace.id,
        name=workspace.name,
        description=workspace.description,
        budget_id=workspace.budget_id,
        is_archived=workspace.archived,
        slot_limits={
            "preemptible": workspace.slot_limit_preemptible,
            "not preemptible": workspace.slot_limit_non_preemptible,
        },
        slots_used={
            "preemptible": workspace.assigned_slots_preemptible,
            "not preemptible": workspace.assigned_slots_non_preemptible,
        },
    )


def group_of(group: messages.Group) -> BeakerGroup:
    """Convert the message of a group of experiments."""
    return BeakerGroup(id=group.id, name=group.full_name or group.name, description=group.description)


def cancelation_name(code: int) -> str:
    """Return why a job was cancelled, such as `manual`; empty for 0, and an unknown code as its number."""
    if code == 0:
        return ""
    if code not in messages.CancelationCode.values():
        return f"code {code}"
    return str(messages.CancelationCode.Name(code)).removeprefix("CANCELATION_CODE_").lower()


def rank_of(details: messages.SystemDetails) -> int | None:
    """Return a replica's rank; None if the task has only one replica."""
    return int(details.replica_group_details.rank) if details.HasField("replica_group_details") else None
