"""What the ends of a gang's replicas mean together: whether they fail an attempt, and which of them is the cause.

In a gang with heads its first replicas run the task, the others serve them and live exactly as long.
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
]

_ENDS_LINK = frozenset({Cause.WALLTIME, Cause.NODE_LOST, Cause.NODE_UNHEALTHY, Cause.PREEMPTED, Cause.NEVER_READY})
"""After these the nodes of a scheduler's job are not to be used again; nobody starts a replica there that is gone."""


def failures(ended: Mapping[int, End], num_heads: int) -> list[End]:
    """The ends that fail an attempt; that of a worker does so whatever its code, since it came before the heads'.

    Args:
        num_heads: 0: every replica runs the task.
    """
    found = [end for end in ended.values() if end.cause != Cause.OK]
    for rank, end in ended.items():
        if num_heads and rank >= num_heads and end.cause == Cause.OK:
            message = f"replica {rank}, a worker, left with exit code {end.code} while the head was running"
            found.append(replace(end, cause=str(Cause.KILLED), message=message))
    return found


def first_failure(bad: Sequence[End]) -> End:
    """The cause among failures: the earliest; a connection broke since its other end died, where one did."""
    first = min(bad, key=_precedence)
    deaths = [end for end in bad if end.cause in (Cause.KILLED, Cause.OUT_OF_MEMORY)]
    return min(deaths, key=_precedence) if deaths and first.cause == Cause.NETWORK else first


def _precedence(end: End) -> tuple[bool, float, int]:
    """The first failure is the cause; a replica that only heard of another's failure comes last."""
    return (end.cause == Cause.SIBLING_FAILED or kind_of(cause_of(end.cause)) is Kind.DONE, end.at, end.rank)


def ends_link(end: End) -> bool:
    """Whether the next attempt needs another job of the scheduler's."""
    return end.needs_new_job or cause_of(end.cause) in _ENDS_LINK


def have_heads_succeeded(ended: Mapping[int, End], num_heads: int) -> bool:
    """Whether the task is done and only workers are left; False where there are no heads."""
    return num_heads > 0 and all(rank in ended and ended[rank].cause == Cause.OK for rank in range(num_heads))


def are_heads_over(ended: Mapping[int, End], num_heads: int) -> bool:
    """Whether no head lives, so that nobody needs the workers; False where there are no heads."""
    return num_heads > 0 and all(rank in ended for rank in range(num_heads))


def host_of(attempt: Attempt | None, rank: int) -> str:
    """The machine of a replica, as it told when its process started; empty: not known."""
    replica = attempt.replicas.get(rank) if attempt is not None else None
    return replica.host if replica is not None else ""


def end_of_lost(membership: Membership, rank: int, host: str, *, is_scheduled: bool) -> End:
    """How an attempt ends that lost a replica.

    Args:
        is_scheduled: whether it runs in a scheduler's job, where nobody starts the replica again.
    """
    killed = membership.killed.get(rank)
    cause = Cause.NODE_LOST if killed is None else Cause.KILLED
    message = f"replica {rank} was lost" if killed is None else f"killed from outside: {killed}"
    return End(str(cause), rank=rank, host=host, message=message, needs_new_job=is_scheduled)


def end_of(told: ReplicaStatus, membership: Membership, attempt: int, machine_of: Callable[[int], str]) -> End:
    """What the scheduler said when it told a replica to go. Where a node was lost, who was told of it is not who is gone.

    Args:
        machine_of: the machine of a replica.
    """
    cause, rank, host = cause_of(told.notice_cause, Cause.PREEMPTED), told.rank, told.host
    if cause is Cause.NODE_LOST:
        ended = membership.ended(attempt)
        left = membership.absent[:1] or [other for other in range(membership.num_replicas) if other not in ended]
        rank = left[0] if len(left) == 1 else -1
        host = machine_of(rank)
    return End(str(cause), rank=rank, host=host, message=told.notice)
