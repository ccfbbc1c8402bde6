"""States of runs and tasks, and the table of transitions between them."""

from __future__ import annotations

from enum import Enum

__all__ = ["TRANSITIONS", "State"]


class State(str, Enum):
    """State of a run or a task."""

    PLANNED = "planned"
    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    def __str__(self) -> str:
        return self.value

    @property
    def is_terminal(self) -> bool:
        """Return whether the state is final unless the user retries or resumes."""
        return self in (State.SUCCEEDED, State.FAILED, State.STOPPED)


TRANSITIONS: dict[State, frozenset[State]] = {
    State.PLANNED: frozenset({State.QUEUED, State.FAILED, State.STOPPED}),
    State.QUEUED: frozenset({State.RUNNING, State.STOPPING, State.SUCCEEDED, State.FAILED, State.STOPPED}),
    State.RUNNING: frozenset({State.QUEUED, State.STOPPING, State.SUCCEEDED, State.FAILED, State.STOPPED}),
    State.STOPPING: frozenset({State.STOPPED, State.SUCCEEDED, State.FAILED}),
    State.FAILED: frozenset({State.QUEUED}),
    State.STOPPED: frozenset({State.QUEUED}),
    State.SUCCEEDED: frozenset(),
}
"""Transitions of a task; only `retry` and `resume` leave `failed` and `stopped`.

A task that evaluates checkpoints is queued while it waits for the next one, and may succeed there.
"""
