"""Interface for data loaders: implement these few methods to train on any data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar, runtime_checkable

__all__ = ["CountsPasses", "Loader", "NotReady", "Share"]

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Share of each global batch whose rows a process takes.

    A global batch is a list of rows; microbatch i of process r takes m rows from index (i * world + r) * m. So the
    rows of a batch do not depend on the number of processes, and gradients of neighbouring rows are summed first:
    over processes, then over microbatches.

    Attributes:
        rank: rank in the data-parallel group.
        world: number of processes in that group.
    """

    rank: int = 0
    world: int = 1


class NotReady(Enum):
    """Yielded by a loader whose next batch is not there yet, at least once a second.

    The trainer then hears requests to stop or to save, and asks the loader again.
    """

    BATCH = "batch"


class Loader(Protocol[T_co]):
    """Source of endless batches, with a position that can be saved."""

    @property
    def batches_per_epoch(self) -> int | None:
        """Number of global batches in a pass over the data, or None if unknown."""

    def __iter__(self) -> Iterator[T_co | NotReady]:
        """Yield this process's share of each global batch from the current position on, epoch after epoch.

        A generator that is closed and restarted continues after the last batch that it yielded, even if more were
        prefetched.
        """

    def state_dict(self) -> Mapping[str, int | str]:
        """Return JSON-safe state after the last yielded batch, the same on all processes and for any number of them."""

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        """Restore a position. Raises SpecError if the state belongs to different data."""


@runtime_checkable
class CountsPasses(Protocol):
    """Optional interface for loaders whose passes need not end at a batch boundary."""

    @property
    def batches_per_pass(self) -> float:
        """Number of global batches in a pass over the data, at the current batch size, including a fraction."""

    def batches_until(self, epochs: int, state: Mapping[str, int | str]) -> int:
        """Return the number of batches from a state's position until `epochs` passes are complete."""
