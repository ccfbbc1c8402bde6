"""Protocol of a provider of machines, and its four errors.

ProviderError
|- NoCapacityError     none left of this kind here; try the next choice
|- ThrottledError      too many requests; ask again later with the same token
|- UncertainError      the reply was lost: ask `find` until the provider's window has passed
`- RefusedError        credentials, quota or a wrong request; stop, and say what to type
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol, runtime_checkable

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, Problem

if TYPE_CHECKING:
    from windlass.cluster.config import ClusterConfig
    from windlass.cluster.machine import Choice, Machine, Notice

__all__ = [
    "CreateRequest",
    "NoCapacityError",
    "Provider",
    "ProviderError",
    "RefusedError",
    "RegionalProvider",
    "Skip",
    "ThrottledError",
    "UncertainError",
]


class ProviderError(PreconditionError):
    """A request to a provider that failed."""

    default_code: ClassVar[str] = "provider-failed"


class NoCapacityError(ProviderError):
    """The provider has no such machine there now."""

    default_code: ClassVar[str] = "no-capacity"


class ThrottledError(ProviderError):
    """Too many requests; nothing was done.

    Attributes:
        after_s: seconds to wait.
    """

    default_code: ClassVar[str] = "provider-busy"

    def __init__(self, message: str, *, after_s: float, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.after_s = after_s


class UncertainError(ProviderError):
    """The reply is lost, or a list may be incomplete: what was done is unknown."""

    default_code: ClassVar[str] = "provider-unreachable"


class RefusedError(ProviderError):
    """The provider will not do it, however often it is asked."""

    default_code: ClassVar[str] = "provider-refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateRequest:
    """Machines to make.

    Attributes:
        token: the same token never makes machines twice.
        count: all of them are made, or none.
        boot: script that a machine runs when it starts for the first time.
        deadline_at: when the machine ends itself, in seconds since the epoch; None: never.
    """

    token: str
    cluster: str
    group: str
    count: int
    choice: Choice
    boot: bytes = b""
    deadline_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Kind of machine that a region lacks, so that it is not tried there.

    Attributes:
        type: machine type; empty: nothing is tried in the region.
    """

    region: str
    type: str = ""
    why: str

    def fits(self, choice: Choice) -> bool:
        """Return whether a choice is not tried."""
        return choice.region == self.region and self.type in {"", choice.type}


class Provider(Protocol):
    """A place that has machines. Its methods block, and may be called from several threads.

    Attributes:
        window_s: how long `list_machines` and `find` may not know a machine that was made.
        is_rented: whether machines are made and ended; otherwise they exist, and only our processes end.
    """

    name: str
    window_s: float
    is_rented: bool

    def check(self, config: ClusterConfig) -> Sequence[Problem]:
        """Return what would fail: credentials, region, type, quota, route. Creates nothing."""

    def choices(self, config: ClusterConfig, group: str) -> Sequence[Choice]:
        """Return the kinds of machines to try for a group, in order."""

    def list_machines(self, cluster: str) -> Sequence[Machine]:
        """Return all machines of a cluster that have not ended, in all zones.

        Raises:
            UncertainError: the list may be incomplete.
        """

    def find(self, token: str) -> Sequence[Machine]:
        """Return the machines of a request, ended ones included.

        Raises:
            UncertainError: the provider did not reply.
        """

    def create(self, request: CreateRequest) -> Sequence[Machine]:
        """Make machines: all or none; the same token again returns the same machines.

        Raises:
            ProviderError: one of its four kinds.
        """

    def terminate(self, ids: Sequence[str]) -> None:
        """End machines; idempotent, and unknown ones count as ended.

        Raises:
            UncertainError, ThrottledError: ask again.
        """

    def describe(self, ids: Sequence[str]) -> Sequence[Machine]:
        """Return machines by id, ended ones included, while the provider knows them."""

    def notices(self) -> Sequence[Notice]:
        """Return the announcements for the machine that this runs on; needs no credentials."""


@runtime_checkable
class RegionalProvider(Protocol):
    """Provider of which a file may name several regions: further ability of a `Provider`."""

    def skips(self, config: ClusterConfig) -> Sequence[Skip]:
        """Return what is not tried since a region lacks it; creates nothing.

        Raises:
            ProviderError: it is not known now.
        """
