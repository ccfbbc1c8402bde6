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
from windlass.backends.registry import backend_for

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
    "backend_for",
]
