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

    A global batch is a list of rows; microbatch i of process r takes m rows from index (i * world + r) * m. So the
    rows of a batch do not depend on the number of processes, and gradients of neighbouring rows are summed first:
    over processes, then over microbatches.

    Attributes:
        rank: rank in the data-parallel group.
        world: number of processes in that group.
    """

    rank: int = 0
    world: int = 1


class Loader(Protocol[T_co]):
    """Source of endless batches that has a position."""

    @property
    def batches_per_epoch(self) -> int | None:
        """Global batches in a pass over the data; None if unknown."""

    def __iter__(self) -> Iterator[T_co]:
        """Yield this process's share of each global batch from the current position, epoch after epoch.

        A generator that is closed and restarted continues after the last batch that it yielded, even if more were
        prefetched.
        """

    def state_dict(self) -> Mapping[str, int | str]:
        """Return JSON-safe state after the last yielded batch, equal on all processes and independent of their number."""

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Restore a position. Raises SpecError if the state is of different data."""


@runtime_checkable
class CountsPasses(Protocol):
    """Optional interface of loaders whose passes need not end at a batch boundary."""

    @property
    def batches_per_pass(self) -> float:
        """Global batches in a pass over the data, at the current batch size, including fractions."""

    def batches_until(self, epochs: int, state: Mapping[str, int | str]) -> int:
        """Return the batches from a state's position until `epochs` passes are complete."""
