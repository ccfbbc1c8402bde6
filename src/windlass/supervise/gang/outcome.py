"""Combination of the replicas' ends: whether they fail an attempt, and which end is the cause.

In a gang with heads the first replicas run the task; the others serve them and end with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Callable

from windlass.record.causes import Cause, Kind, cause_of, kind_of
from windlass.record.state import Attempt, End
from windlass.supervise.gang.membership import Membership
from windlass.supervise.gang.messages import ReplicaStatus

__all__ = [
    "are_heads_over",
    "end_of",
    "end_of_lost",
    "ends_link",
    "failures",
    "first_failure",
    "have_heads_succeeded",
    "host_of",
    "order_of_running",
]

_ENDS_LINK = frozenset({Cause.WALLTIME, Cause.NODE_LOST, Cause.NODE_UNHEALTHY, Cause.PREEMPTED, Cause.NEVER_READY})
"""Causes after which the nodes of a scheduler's job are not used again; lost replicas are not restarted there."""


def failures(ended: Mapping[int, End], num_heads: int) -> list[End]:
    """Return the ends that fail an attempt; a worker that ends before the heads fails it with any exit code.

    Args:
        num_heads: number of heads; if 0, every replica runs the task.
    """
    found = [end for end in ended.values() if end.cause != Cause.OK]
    for rank, end in ended.items():
        if num_heads and rank >= num_heads and end.cause == Cause.OK:
            message = f"replica {rank}, a worker, exited with code {end.code} while the head was running"
            found.append(replace(end, cause=str(Cause.KILLED), message=message))
    return found


def first_failure(bad: Sequence[End]) -> End:
    """Return the failure that caused the others: the earliest one.

    If it is a broken connection and another replica died, the death is the cause.
    """
    first = min(bad, key=_precedence)
    deaths = [end for end in bad if end.cause in (Cause.KILLED, Cause.OUT_OF_MEMORY)]
    return min(deaths, key=_precedence) if deaths and first.cause == Cause.NETWORK else first


def _precedence(end: End) -> tuple[bool, float, int]:
    """Return the sort key of a failure; a replica that was stopped only because another failed comes last."""
    return (end.cause == Cause.SIBLING_FAILED or kind_of(cause_of(end.cause)) is Kind.DONE, end.at, end.rank)


def ends_link(end: End) -> bool:
    """Return whether the next attempt needs another of the scheduler's jobs."""
    return end.needs_new_job or cause_of(end.cause) in _ENDS_LINK


def have_heads_succeeded(ended: Mapping[int, End], num_heads: int) -> bool:
    """Return whether all heads succeeded; False without heads."""
    return num_heads > 0 and all(rank in ended and ended[rank].cause == Cause.OK for rank in range(num_heads))


def are_heads_over(ended: Mapping[int, End], num_heads: int) -> bool:
    """Return whether all heads have ended, so that no worker is needed; False without heads."""
    return num_heads > 0 and all(rank in ended for rank in range(num_heads))


def host_of(attempt: Attempt | None, rank: int) -> str:
    """Return a replica's host, as reported when its process started; "" if unknown."""
    replica = attempt.replicas.get(rank) if attempt is not None else None
    return replica.host if replica is not None else ""


def order_of_running(attempt: Attempt) -> dict[str, str | int]:
    """Return the fields of the order for an attempt that runs already, for a leader that takes over."""
    step, path = attempt.evaluates
    return {"address": attempt.address, "port": attempt.port, "evaluates": path, "evaluated_step": step}


def end_of_lost(membership: Membership, rank: int, host: str, *, is_scheduled: bool) -> End:
    """Return the end of an attempt that lost a replica.

    Args:
        is_scheduled: whether it runs in a scheduler's job, where lost replicas are not restarted.
    """
    killed = membership.killed.get(rank)
    cause = Cause.NODE_LOST if killed is None else Cause.KILLED
    message = f"replica {rank} was lost" if killed is None else f"killed from outside: {killed}"
    return End(str(cause), rank=rank, host=host, message=message, needs_new_job=is_scheduled)


def end_of(noticed: ReplicaStatus, membership: Membership, attempt: int, machine_of: Callable[[int], str]) -> End:
    """Return the end of an attempt that a scheduler's notice ended.

    After a lost node, the replica that received the notice is not the lost one.

    Args:
        machine_of: returns the machine of a replica.
    """
    cause, rank, host = cause_of(noticed.notice_cause, Cause.PREEMPTED), noticed.rank, noticed.host
    if cause is Cause.NODE_LOST:
        ended = membership.ended(attempt)
        left = membership.absent[:1] or [other for other in range(membership.num_replicas) if other not in ended]
        rank = left[0] if len(left) == 1 else -1
        host = machine_of(rank)
    return End(str(cause), rank=rank, host=host, message=noticed.notice)
