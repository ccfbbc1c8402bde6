"""Nodes and what is asked for: values that providers, the journal and decisions share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal, TypeAlias

from windlass.core.dataclass import dataclass

__all__ = ["GONE", "Choice", "Machine", "MachineState", "Notice"]

MachineState: TypeAlias = Literal["pending", "running", "ending", "ended"]

GONE: frozenset[MachineState] = frozenset({"ending", "ended"})
"""States of nodes that do no work any more; `ending` ones are still charged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A kind of machine in a place: one line of what is tried in order.

    Attributes:
        type: the provider's machine type; empty for machines that exist.
        region: the provider's region; empty: it has none.
        zone: the provider's zone, or the host; empty: any.
        most: how many machines of the kind there can be; 0: no limit.
        price_per_hour: list price in US dollars, the most that a spot machine costs; None: unknown.
    """

    type: str = ""
    region: str = ""
    zone: str = ""
    is_spot: bool = False
    most: int = 0
    price_per_hour: float | None = None

    @property
    def words(self) -> str:
        """Return the kind in words, for messages."""
        where = self.zone or ("any zone of " + self.region if self.region else "any zone")
        return f"{self.type}{' as spot' if self.is_spot else ''} in {where}" if self.type else where


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A machine as its provider describes it.

    Attributes:
        id: the provider's name; never used again for another machine.
        token: token of the request that made it.
        born_at, ended_at: seconds since the epoch on the provider's clock.
        why: why it ended, in the provider's words.
    """

    id: str
    token: str
    group: str
    state: MachineState
    address: str = ""
    public_address: str = ""
    choice: Choice = Choice()
    born_at: float = 0.0
    ended_at: float | None = None
    why: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_charged(self) -> bool:
        """Return whether it still costs money."""
        return self.state != "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A provider's announcement that it takes a machine back.

    Attributes:
        at: when, in seconds since the epoch.
    """

    at: float
    kind: Literal["terminate", "stop", "rebalance"]
