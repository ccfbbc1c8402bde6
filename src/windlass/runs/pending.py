"""Actions that a run needs, as shown by commands that only look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

__all__ = ["Assessment", "PendingAction"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingAction:
    """Action that a run needs and that only `--reconcile` carries out.

    Attributes:
        task: empty if it concerns the whole run.
        what: the condition, in words.
        then: the action of `--reconcile`, in words; empty if no command can act.
    """

    task: str
    what: str
    then: str

    def to_data(self) -> dict[str, str]:
        """The JSON form."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """Pending actions and observations of a run.

    Attributes:
        suspended: by task, why its job is suspended on its machines.
        unseen: by task, why the state of its job is unknown.
    """

    pending: tuple[PendingAction, ...] = ()
    suspended: Mapping[str, str] = field(default_factory=dict)
    unseen: Mapping[str, str] = field(default_factory=dict)
