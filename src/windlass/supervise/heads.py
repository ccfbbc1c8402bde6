"""Gangs with a head: its first replicas run the task, the others serve them and live exactly as long."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from windlass.record.causes import Cause
from windlass.record.state import End

__all__ = ["are_heads_over", "failures", "have_heads_succeeded"]


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


def have_heads_succeeded(ended: Mapping[int, End], num_heads: int) -> bool:
    """Whether the task is done and only workers are left; False where there are no heads."""
    return num_heads > 0 and all(rank in ended and ended[rank].cause == Cause.OK for rank in range(num_heads))


def are_heads_over(ended: Mapping[int, End], num_heads: int) -> bool:
    """Whether no head lives, so that nobody needs the workers; False where there are no heads."""
    return num_heads > 0 and all(rank in ended for rank in range(num_heads))
