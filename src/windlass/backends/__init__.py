"""Backends: the kinds of places where jobs run."""

from __future__ import annotations

from windlass.backends.protocol import (
    Backend,
    CanHold,
    CanSubmitMany,
    CanSweep,
    CanUnqueue,
    JobState,
    Observation,
    Rendered,
    Submission,
)

__all__ = [
    "Backend",
    "CanHold",
    "CanSubmitMany",
    "CanSweep",
    "CanUnqueue",
    "JobState",
    "Observation",
    "Rendered",
    "Submission",
]
