"""Backends: the systems that run jobs."""

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
