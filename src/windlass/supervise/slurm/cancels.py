"""Who ended a job that Slurm calls CANCELLED: a person, or Slurm itself. Pure.

Slurm cancels a job by itself where a node cannot start it and it may not be requeued. A controller that lost its newest
state does that to a job that runs: it starts the job again, the node refuses the second copy, and the node's daemon
cancels it (Slurm 22.05: `_launch_job_fail` of slurmd/slurmd/req.c, and the reasons in slurmctld/agent.c and node_mgr.c).
Accounting then names root, as it does for an administrator. So what the nodes say comes before what accounting says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from windlass.record.causes import Cause
from windlass.supervise.slurm.jobs import JobEnd

__all__ = ["NO_USER", "cancelled_by", "end_of_cancelled", "why_refused"]

NO_USER = -1
"""In place of a user's number, where accounting knows of the end and names no user."""

_ROOT = 0
_BY = re.compile(r"CANCELLED by ([0-9]{1,10})(?![0-9])")
_REFUSALS = {
    "Duplicate jobid": "it takes the id for that of an earlier job; a controller that lost its memory gives ids again",
    "Prolog error": "the site's prolog failed there",
    "Job env setup error": "the job's environment could not be made there",
}
"""Why Slurm drains a node that refused a job, in Slurm's words and in ours."""


def cancelled_by(states: Iterable[str]) -> int | None:
    """The user who cancelled a job, from its states in accounting; None: accounting does not know that it is over."""
    ends = [state for state in states if state.startswith("CANCELLED")]
    named = [int(match.group(1)) for match in map(_BY.match, ends) if match]
    return named[-1] if named else NO_USER if ends else None


def why_refused(reasons: Iterable[str]) -> tuple[str, str]:
    """Slurm's word and ours for why a node refused a job, from the reasons for which its nodes are out of use."""
    return next(((reason, _REFUSALS[reason]) for reason in reasons if reason in _REFUSALS), ("", ""))


def end_of_cancelled(
    *, by: int | None, reasons: Iterable[str], has_begun: bool, is_later_start: bool, nodes: str
) -> JobEnd:
    """How a job ended that is CANCELLED.

    Args:
        by: who did it, from accounting; None: there is no accounting.
        reasons: why nodes of the job are out of use.
        has_begun: whether a supervisor of ours ran in it.
        is_later_start: whether Slurm speaks of a start of the job that came after the one that ran.
    """
    if by is not None and by > _ROOT:
        return JobEnd(Cause.CANCELLED, f"it was cancelled in Slurm by user {by}")
    word, refusal = why_refused(reasons)
    if is_later_start or (refusal and has_begun):
        told = f" (Slurm: {word})" if word else ""
        return JobEnd(Cause.KILLED, f"a restarted controller had forgotten that it ran, and ended it{told}")
    if refusal:
        return JobEnd(Cause.NODE_UNHEALTHY, f"a node of {nodes} turned it down: {refusal} (Slurm: {word})")
    if by == NO_USER:
        return JobEnd(
            Cause.KILLED, "Slurm ended it, and accounting names no user who asked for that (Slurm: CANCELLED)"
        )
    who = " by root" if by == _ROOT else ""
    return JobEnd(Cause.CANCELLED, f"it was cancelled in Slurm{who} (Slurm: CANCELLED)")
