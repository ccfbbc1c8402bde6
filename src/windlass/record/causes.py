"""Causes for which work ends: one taxonomy for all backends, and how each cause affects a retry."""

from __future__ import annotations

from enum import Enum

__all__ = ["EXIT_DO_NOT_RETRY", "EXIT_RESUMABLE", "Cause", "Kind", "cause_of", "kind_of"]

EXIT_RESUMABLE = 75
"""Exit code of a process that was stopped and can resume (sysexits.h: EX_TEMPFAIL)."""

EXIT_DO_NOT_RETRY = 93
"""Exit code of a process that must not be restarted (a convention of nvidia-resiliency-ext)."""


class Kind(Enum):
    """Kind of a cause, which determines the retry budget that it counts against."""

    DONE = "done"
    INTERRUPTION = "interruption"
    FAILURE = "failure"
    FINAL = "final"


class Cause(str, Enum):
    """Reason why a process, an attempt or a task ended."""

    OK = "ok"
    USER_ERROR = "user-error"
    OUT_OF_MEMORY = "out-of-memory"
    KILLED = "killed"
    STALLED = "stalled"
    PREEMPTED = "preempted"
    WALLTIME = "walltime"
    NODE_LOST = "node-lost"
    NODE_UNHEALTHY = "node-unhealthy"
    NEVER_READY = "never-ready"
    START_FAILED = "start-failed"
    IMAGE_FAILED = "image-failed"
    SETUP_FAILED = "setup-failed"
    DATA_FAILED = "data-failed"
    SECRET_MISSING = "secret-missing"
    DISK_FULL = "disk-full"
    NETWORK = "network"
    SIBLING_FAILED = "sibling-failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    UNSCHEDULABLE = "unschedulable"
    NO_PROGRESS = "no-progress"
    DO_NOT_RETRY = "do-not-retry"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


_INTERRUPTIONS = frozenset(
    {
        Cause.KILLED,
        Cause.STALLED,
        Cause.PREEMPTED,
        Cause.WALLTIME,
        Cause.NODE_LOST,
        Cause.NODE_UNHEALTHY,
        Cause.NEVER_READY,
        Cause.NETWORK,
        Cause.UNKNOWN,
    }
)
_FINAL = frozenset(
    {
        Cause.SECRET_MISSING,
        Cause.SIBLING_FAILED,
        Cause.CANCELLED,
        Cause.TIMEOUT,
        Cause.UNSCHEDULABLE,
        Cause.NO_PROGRESS,
        Cause.DO_NOT_RETRY,
    }
)


def cause_of(text: str, otherwise: Cause = Cause.UNKNOWN) -> Cause:
    """Return the cause with this name; `otherwise` for a name that only a later version knows."""
    try:
        return Cause(text)
    except ValueError:
        return otherwise


def kind_of(cause: Cause) -> Kind:
    """Return the kind of a cause, and so the budget it counts against; every cause has exactly one."""
    if cause is Cause.OK:
        return Kind.DONE
    if cause in _INTERRUPTIONS:
        return Kind.INTERRUPTION
    return Kind.FINAL if cause in _FINAL else Kind.FAILURE
