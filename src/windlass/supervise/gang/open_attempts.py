"""Unfinished work of a job's earlier starts: attempts without an end, and processes whose end is not recorded.

A leader may end an attempt after losing a replica that it cannot reach and that may still run. Pure.
"""

from __future__ import annotations

from windlass.record.state import Attempt, TaskFacts

__all__ = ["is_of_other_start", "newest_open_attempt", "open_processes"]


def is_of_other_start(attempt: Attempt | None, incarnation: str) -> bool:
    """Return whether another start of the job began this attempt; False on one machine."""
    return attempt is not None and bool(incarnation) and attempt.started_at > 0 and attempt.incarnation != incarnation


def open_processes(task: TaskFacts, incarnation: str) -> list[tuple[int, int]]:
    """Return an (attempt, rank) pair for each process of another start that may still run."""
    others = [attempt for attempt in task.attempts.values() if is_of_other_start(attempt, incarnation)]
    return [
        (attempt.number, rank)
        for attempt in others
        for rank, replica in sorted(attempt.replicas.items())
        if replica.is_starting and not replica.is_certainly_over
    ]


def newest_open_attempt(task: TaskFacts, incarnation: str) -> int:
    """Return the number of another start's newest attempt that may still run; 0 if there is none."""
    others = [attempt for attempt in task.attempts.values() if is_of_other_start(attempt, incarnation)]
    unended = [attempt.number for attempt in others if attempt.end is None]
    return max([*unended, *(number for number, _ in open_processes(task, incarnation))], default=0)
