"""Why Beaker's jobs ended, in the words of `record.causes`."""

from __future__ import annotations

from windlass.backends.beaker.seen import JobSeen
from windlass.record.causes import Cause

__all__ = ["SETUP_FAILED_CODE", "cause_of_job", "words_of_end"]

SETUP_FAILED_CODE = 76
"""Exit code of the script that looks for a Python (`script.py`), where it finds none."""

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
"""Source: `CancelationCode` of beaker-py 2.8.1. A retry of a sibling ends this one as a lost node would."""


def cause_of_job(job: JobSeen) -> Cause:
    """Why a job ended; UNKNOWN where it has not, or only the supervisor can know."""
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


def words_of_end(job: JobSeen) -> str:
    """How a job ended, in Beaker's words."""
    told = job.message or job.canceled_for
    if job.canceled_code:
        return f"replica {job.rank}: {job.canceled_code.replace('_', ' ')}" + (f": {told}" if told else "")
    code = "" if job.exit_code is None else f", exit code {job.exit_code}"
    return f"replica {job.rank}: {job.status}{code}" + (f": {told}" if told else "")


def _was_waiting(job: JobSeen) -> bool:
    """Whether it had its machine and never began: the other replicas did not come."""
    return bool(job.scheduled_ns) and not job.started_ns and job.size > 1
