"""What a run needs from a command that may act on it, as a command that only looks says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

__all__ = ["Assessment", "PendingAction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAction:
    """Something that a run needs, and that only a command that acts does.

    Attributes:
        task: empty where it is about the whole run.
        what: what is so, in words.
        then: what `--reconcile` does about it, in words; empty where no command does anything.
    """

    task: str
    what: str
    then: str

    def to_data(self) -> dict[str, str]:
        """The JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """One look at a run and its place.

    Attributes:
        suspended: by task, why its job does not run although it has its machines.
        unseen: by task, why its place does not say what its job does; or why a job that is not known there may run.
    """

    pending: tuple[PendingAction, ...] = ()
    suspended: Mapping[str, str] = field(default_factory=dict)
    unseen: Mapping[str, str] = field(default_factory=dict)
