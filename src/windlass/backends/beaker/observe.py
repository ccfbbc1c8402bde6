"""States of Beaker's experiments and the causes of their ends, as values of `record.causes`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from windlass.backends.beaker.render import SETUP_FAILED_CODE, SETUP_NOTE
from windlass.backends.beaker.values import BeakerExperiment, BeakerJob
from windlass.backends.protocol import JobState, Observation
from windlass.record.causes import Cause

__all__ = ["cause_of_job", "observation_of_end", "observation_of_open", "words_of_end"]

_WAITING = {"submitted", "queued", "initializing", "ready_to_start"}

_CODES = {
    "system_preemption": Cause.PREEMPTED,
    "user_preemption": Cause.PREEMPTED,
    "idle": Cause.STALLED,
    "manual": Cause.CANCELLED,
    "timeout": Cause.WALLTIME,
    "node_unavailable": Cause.NODE_LOST,
    "impossible_to_schedule": Cause.UNSCHEDULABLE,
    "sibling_task_failed": Cause.SIBLING_FAILED,
    "sibling_task_preemption": Cause.PREEMPTED,
    "healthcheck_failed": Cause.NODE_UNHEALTHY,
    "sibling_task_retry": Cause.NODE_LOST,
    "node_unhealthy": Cause.NODE_UNHEALTHY,
}
"""Source: `CancelationCode` of beaker-py 2.8.1. A sibling's retry ends a replica as a lost node would."""


def observation_of_open(seen: BeakerExperiment) -> Observation:
    """Return the state of an experiment that has not ended."""
    state = JobState.QUEUED if seen.status in _WAITING else JobState.RUNNING
    return Observation(state=state, detail=f"experiment {seen.id} is {seen.status.replace('_', ' ')}")


def observation_of_end(seen: BeakerExperiment, jobs: Sequence[BeakerJob], folder: Path) -> Observation:
    """Return how an experiment ended; RUNNING while Beaker is still finalizing its jobs.

    Args:
        jobs: all jobs of the experiment.
        folder: the job's folder on this machine.
    """
    latest = {one.task_id: one for one in jobs}
    if any(not one.is_over for one in latest.values()):
        return Observation(state=JobState.RUNNING, detail=f"experiment {seen.id} is being finalized")
    note = folder / SETUP_NOTE
    if note.exists():
        return Observation(state=JobState.GONE, detail=note.read_text().strip(), cause=str(Cause.SETUP_FAILED))
    if seen.status == "succeeded":
        return Observation(state=JobState.GONE, detail="succeeded")
    first = _culprit(tuple(latest.values()))
    if first is None:
        cause = str(Cause.CANCELLED) if seen.status == "canceled" else ""
        return Observation(state=JobState.GONE, detail=seen.canceled_for or seen.status, cause=cause)
    cause = cause_of_job(first)
    known = "" if cause in (Cause.UNKNOWN, Cause.OK) else str(cause)
    return Observation(state=JobState.GONE, detail=words_of_end(first), cause=known)


def cause_of_job(job: BeakerJob) -> Cause:
    """Return why a job ended; UNKNOWN if it has not ended or only the supervisor can know."""
    if job.canceled_code:
        if job.canceled_code in ("timeout", "impossible_to_schedule") and _was_waiting(job):
            return Cause.NEVER_READY
        return _CODES.get(job.canceled_code, Cause.UNKNOWN)
    if job.exit_code == 0:
        return Cause.OK
    if job.exit_code == SETUP_FAILED_CODE:
        return Cause.SETUP_FAILED
    if job.status == "failed" and not job.started_ns:
        return Cause.START_FAILED
    return Cause.UNKNOWN


def words_of_end(job: BeakerJob) -> str:
    """Describe how a job ended, in Beaker's words."""
    told = job.message or job.canceled_for
    if job.canceled_code:
        return f"replica {job.rank}: {job.canceled_code.replace('_', ' ')}" + (f": {told}" if told else "")
    code = "" if job.exit_code is None else f", exit code {job.exit_code}"
    return f"replica {job.rank}: {job.status}{code}" + (f": {told}" if told else "")


def _was_waiting(job: BeakerJob) -> bool:
    """Return True if the job had a machine but never started because other replicas were missing."""
    return bool(job.scheduled_ns) and not job.started_ns and job.size > 1


def _culprit(jobs: Sequence[BeakerJob]) -> BeakerJob | None:
    """Return the job of the replica that ended first and caused the others to end."""
    ended = [job for job in jobs if job.canceled_code or job.exit_code != 0]
    own = [job for job in ended if not job.canceled_code.startswith("sibling")]
    return min(own or ended, key=lambda job: (job.exited_ns or job.finalized_ns, job.rank), default=None)
