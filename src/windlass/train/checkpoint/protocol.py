"""What the trainer keeps of itself, and what it needs of a place for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["CheckpointStore", "Committed", "PendingSave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A checkpoint that is whole.

    Attributes:
        path: folder or URL.
        is_permanent: whether only keep rules may remove it.
    """

    path: str
    step: int
    tokens: int
    is_permanent: bool


class PendingSave(Protocol):
    """A save under way."""

    def is_done(self) -> bool:
        """Whether it ended, well or not; costs microseconds, no collective."""

    def wait(self) -> Committed:
        """Block until it is committed. Collective. Raises what went wrong, on every process."""


class CheckpointStore(Protocol):
    """A folder or URL of checkpoints. Every method but `is_done` is called by all processes together."""

    def committed(self) -> Sequence[Committed]:
        """Those that are whole by their marker, oldest first."""

    def save(
        self,
        state: Mapping[str, Any],
        trainer: Mapping[str, Any],
        *,
        step: int,
        tokens: int,
        config: Mapping[str, Any],
        is_permanent: bool,
        is_async: bool,
        extra: Mapping[str, bytes] | None = None,
    ) -> PendingSave:
        """Write `state` (nested mappings of tensors and DTensors) and `trainer` (JSON-safe, equal on all processes).

        `extra` are small files of rank 0 by name. Returns when the tensors may change again. The checkpoint counts from the moment its marker is there.
        """

    def load(self, path: str, state: Mapping[str, Any], *, is_strict: bool = True) -> Mapping[str, Any]:
        """Fill `state` in place, resharded as its tensors are; returns the trainer's part.

        Raises:
            CheckpointError: torn, changed, unfinished, or of another model; says which file or weight.
        """

    def read_extra(self, path: str, name: str) -> bytes | None:
        """One of the `extra` files of a checkpoint; None where it has none. Not collective."""

    def drop(self, path: str) -> None:
        """Remove a checkpoint; its marker goes first. Idempotent."""
