"""How a job of ours ended, as a client sees it: with what its folder, its nodes and accounting say beside its state.

A job that a node refused is CANCELLED, as one that a person cancelled, and a job whose `srun` was killed is a
JobLaunchFailure, as one that could not start.
"""

from __future__ import annotations

import time
from pathlib import Path

from windlass.backends.slurm.commands import Past, SlurmCommands
from windlass.core.json_text import read_object
from windlass.record.causes import Cause
from windlass.supervise.slurm.cancels import judge_cancel
from windlass.supervise.slurm.jobs import Ended, SlurmJob

__all__ = ["how_ended"]

_DRAINED_WITHIN_S = 1.0
"""Slurm drains the node just after the job's end, in a thread that may sleep for so long (slurmctld/agent.c, `_wdog`)."""


def how_ended(commands: SlurmCommands, job: SlurmJob | Past, folder: Path) -> Ended | None:
    """How a job ended; None: nobody knows. May block for a second.

    Args:
        folder: of the job; its link files tell whether a supervisor of ours ran.

    Raises:
        UnreachableError: Slurm does not answer.
    """
    link = job.link if isinstance(job, SlurmJob) else "*"
    is_number_of_another = isinstance(job, SlurmJob) and _has_begun_as_another(folder, job)
    has_begun = is_number_of_another or any(folder.glob(f"link-{link}.json"))
    ended = job.how_ended(has_begun=has_begun)
    if ended is None or ended.cause is not Cause.CANCELLED or not job.nodes:
        return ended
    for pause_s in (0.0, _DRAINED_WITHIN_S):
        time.sleep(pause_s)
        by, reasons = commands.cancelled_by(job.id, job.name), commands.reasons(job.nodes)
        found = judge_cancel(
            by=by, reasons=reasons, has_begun=has_begun, is_later_start=is_number_of_another, nodes=job.nodes
        )
        if (by or 0) > 0 or found.cause is not Cause.CANCELLED:
            break
    return found


def _has_begun_as_another(folder: Path, job: SlurmJob) -> bool:
    """Whether another link of the chain began under the same number.

    A controller that lost its memory gave the number again while that link ran: it ended what ran, started the number
    again, was refused by the nodes, and cancelled it. The nodes may be in use again before anybody asks why.
    """
    others = (path for path in folder.glob("link-*.json") if path.name != f"link-{job.link}.json")
    return any(_number_in(path) == job.id for path in others)


def _number_in(path: Path) -> str:
    try:
        return str(read_object(path).get("id", ""))
    except (OSError, ValueError):
        return ""
