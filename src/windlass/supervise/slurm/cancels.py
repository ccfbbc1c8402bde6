"""Why a job ended in Slurm's state CANCELLED: a user, or Slurm itself. Pure.

Slurm cancels a job by itself if a node cannot start it and it may not be requeued. A controller that lost its newest
state does that to a running job: it starts the job again, the node refuses the second copy, and the node's daemon
cancels it (Slurm 22.05: `_launch_job_fail` of slurmd/slurmd/req.c, and the reasons in slurmctld/agent.c and node_mgr.c).
Accounting then names root, as it does for an administrator. So what the nodes report outranks accounting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from windlass.record.causes import Cause
from windlass.supervise.slurm.job_listing import JobEnd

__all__ = ["NO_USER", "cancelled_by", "end_of_cancelled", "why_refused"]

NO_USER = -1
"""Placeholder for a user id: accounting has the end, but no user."""

_ROOT = 0
_BY = re.compile(r"CANCELLED by ([0-9]{1,10})(?![0-9])")
_REFUSALS = {
    "Duplicate jobid": "it takes the job for an earlier one; a controller that lost its state reuses ids",
    "Prolog error": "the site's prolog failed there",
    "Job env setup error": "the job's environment could not be set up there",
}
"""Slurm's reason for draining a node that refused a job, and its explanation."""


def cancelled_by(states: Iterable[str]) -> int | None:
    """Return the id of the user who cancelled a job, from accounting; None if accounting has no record of its end."""
    ends = [state for state in states if state.startswith("CANCELLED")]
    named = [int(match.group(1)) for match in map(_BY.match, ends) if match]
    return named[-1] if named else NO_USER if ends else None


def why_refused(reasons: Iterable[str]) -> tuple[str, str]:
    """Return Slurm's reason for a node's refusal and an explanation, from the drain reasons."""
    return next(((reason, _REFUSALS[reason]) for reason in reasons if reason in _REFUSALS), ("", ""))


def end_of_cancelled(
    *, by: int | None, reasons: Iterable[str], has_begun: bool, is_later_start: bool, nodes: str
) -> JobEnd:
    """Return how a CANCELLED job ended.

    Args:
        by: user id, from accounting; None if there is no accounting.
        reasons: drain reasons of the job's nodes.
        has_begun: whether a supervisor ran in it.
        is_later_start: whether Slurm's record is for a later start than the one that ran.
    """
    if by is not None and by > _ROOT:
        return JobEnd(Cause.CANCELLED, f"it was cancelled in Slurm by user {by}")
    word, refusal = why_refused(reasons)
    if is_later_start or (refusal and has_begun):
        quoted = f" (Slurm: {word})" if word else ""
        return JobEnd(Cause.KILLED, f"a restarted controller had lost its record of the job and ended it{quoted}")
    if refusal:
        return JobEnd(Cause.NODE_UNHEALTHY, f"a node of {nodes} refused it: {refusal} (Slurm: {word})")
    if by == NO_USER:
        return JobEnd(
            Cause.KILLED, "Slurm ended it, and accounting names no user who asked for that (Slurm: CANCELLED)"
        )
    who = " by root" if by == _ROOT else ""
    return JobEnd(Cause.CANCELLED, f"it was cancelled in Slurm{who} (Slurm: CANCELLED)")
