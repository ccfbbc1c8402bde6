"""Interface of data loaders: implement these few methods to train on any data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar, runtime_checkable

__all__ = ["CountsPasses", "Loader", "Share"]

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Rows of each global batch that a process takes.

    A global batch is a list of rows; microbatch i of process r takes the rows from (i * world + r) * m on, m rows. So the
    rows of a batch do not depend on the number of processes, and neighbours in the batch meet first when gradients are
    summed over processes, then over microbatches.

    Attributes:
        rank: of the data-parallel group.
        world: processes of that group.
    """

    rank: int = 0
    world: int = 1


class Loader(Protocol[T_co]):
    """Endless batches and their position."""

    @property
    def batches_per_epoch(self) -> int | None:
        """Global batches in a pass over the data; None if unknown."""

    def __iter__(self) -> Iterator[T_co]:
        """This process's shares of the global batches from the present position on, epoch after epoch.

        A generator that is closed and restarted continues after the last batch that it yielded, whatever was fetched
        ahead.
        """

    def state_dict(self) -> Mapping[str, int | str]:
        """JSON-safe state after the last batch that was yielded; the same on every process, free of their number."""

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Restore a position. Raises SpecError if the state is of other data."""


@runtime_checkable
class CountsPasses(Protocol):
    """Optional interface of loaders whose pass over the data need not end with a batch."""

    @property
    def batches_per_pass(self) -> float:
        """Global batches in a pass over the data, at the present batch size, a part of one counted as that."""

    def batches_until(self, epochs: int, state: Mapping[str, int | str]) -> int:
        """Return the batches from the position of a state until that many passes are complete."""
