"""Actions that a run needs, as shown by read-only commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

__all__ = ["Assessment", "PendingAction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAction:
    """Action that a run needs and that only `--reconcile` carries out.

    Attributes:
        task: task of the action; empty for the whole run.
        what: description of the condition.
        then: description of what `--reconcile` does; empty if no command can act.
    """

    task: str
    what: str
    then: str

    def to_data(self) -> dict[str, str]:
        """Return the JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Pending actions and observations of a run.

    Attributes:
        suspended: by task, the reason why its job is suspended.
        unseen: by task, the reason why the state of its job is unknown.
    """

    pending: tuple[PendingAction, ...] = ()
    suspended: Mapping[str, str] = field(default_factory=dict)
    unseen: Mapping[str, str] = field(default_factory=dict)
