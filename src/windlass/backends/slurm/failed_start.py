"""A job that a node turned down: Slurm calls it CANCELLED, as one that a person cancelled.

A slurmd that cannot start a job asks for it to be requeued, and cancels it where it may not be (`--no-requeue`). The
reason for which Slurm then drains the node is all that tells the two apart. Source: Slurm 22.05, `_launch_job_fail` of
slurmd/slurmd/req.c, and the reasons in slurmctld/agent.c and slurmctld/node_mgr.c.
"""

from __future__ import annotations

import time
from pathlib import Path

from windlass.backends.slurm.commands import Past, SlurmCommands
from windlass.record.causes import Cause
from windlass.supervise.slurm_jobs import Ended, SlurmJob

__all__ = ["why_turned_down"]

_WORDS = {
    "Duplicate jobid": "it takes the id for that of an earlier job; a controller that lost its memory gives ids again",
    "Prolog error": "the site's prolog failed there",
    "Job env setup error": "the job's environment could not be made there",
}
_DRAINED_WITHIN_S = 1.0
"""Slurm drains the node just after the job's end, in a thread that may sleep for so long (slurmctld/agent.c, `_wdog`)."""


def why_turned_down(commands: SlurmCommands, job: SlurmJob | Past, folder: Path) -> Ended | None:
    """What a node had against a cancelled job; None where a person cancelled it. May block for a second.

    Args:
        folder: of the job; what has begun there was not turned down, and Slurm is not asked.

    Raises:
        UnreachableError: Slurm does not answer.
    """
    link = job.link if isinstance(job, SlurmJob) else "*"
    if (
        job.ended is None
        or job.ended.cause is not Cause.CANCELLED
        or not job.nodes
        or any(folder.glob(f"link-{link}.json"))
    ):
        return None
    for pause_s in (0.0, _DRAINED_WITHIN_S):
        time.sleep(pause_s)
        for reason in commands.reasons(job.nodes):
            if reason in _WORDS:
                return Ended(
                    Cause.NODE_UNHEALTHY, f"a node of {job.nodes} turned it down: {_WORDS[reason]} (Slurm: {reason})"
                )
    return None
