"""Interfaces between the trainer and a checkpoint store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["CheckpointStore", "Committed", "PendingSave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Complete checkpoint.

    Attributes:
        path: folder or URL.
        is_permanent: whether only retention may remove it.
    """

    path: str
    step: int
    tokens: int
    is_permanent: bool


class PendingSave(Protocol):
    """Save in progress."""

    def is_done(self) -> bool:
        """Return whether the save has finished or failed. Takes microseconds; not collective."""

    def wait(self) -> Committed:
        """Block until the save is committed. Collective. Raises the save's error on every process."""


class CheckpointStore(Protocol):
    """Folder or URL that holds checkpoints. All processes call every method together."""

    def committed(self) -> Sequence[Committed]:
        """Return the checkpoints that have a valid marker, oldest first."""

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

        `extra` holds rank 0's small files by name. Returns when the tensors may change again. The checkpoint is valid
        once its marker exists.
        """

    def load(self, path: str, state: Mapping[str, Any], *, is_strict: bool = True) -> Mapping[str, Any]:
        """Fill `state` in place, resharded as needed; return the trainer's state.

        Raises:
            CheckpointError: damaged, unfinished, or of another model; the message names the file or weight.
        """

    def read_extra(self, path: str, name: str) -> bytes | None:
        """Return one of a checkpoint's `extra` files, or None if there is no such file. Not collective."""

    def drop(self, path: str) -> None:
        """Remove a checkpoint, beginning with its marker. Idempotent."""
