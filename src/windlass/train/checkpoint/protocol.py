"""Interfaces between the trainer and a store of checkpoints."""

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
        is_permanent: whether only retention may remove it.
    """

    path: str
    step: int
    tokens: int
    is_permanent: bool


class PendingSave(Protocol):
    """A save under way."""

    def is_done(self) -> bool:
        """Return whether the save has ended, successful or not; costs microseconds, not collective."""

    def wait(self) -> Committed:
        """Block until it is committed. Collective. Raises the save's error on every process."""


class CheckpointStore(Protocol):
    """A folder or URL of checkpoints. Every method but `is_done` is called by all processes together."""

    def committed(self) -> Sequence[Committed]:
        """Return the checkpoints with a valid marker, oldest first."""

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

        `extra` are small files of rank 0 by name. Returns when the tensors may change again. The checkpoint is valid once its marker exists.
        """

    def load(self, path: str, state: Mapping[str, Any], *, is_strict: bool = True) -> Mapping[str, Any]:
        """Fill `state` in place, resharded as needed; returns the trainer's state.

        Raises:
            CheckpointError: damaged, unfinished, or of another model; names the file or weight.
        """

    def read_extra(self, path: str, name: str) -> bytes | None:
        """Return one of the `extra` files of a checkpoint; None if it has none of that name. Not collective."""

    def drop(self, path: str) -> None:
        """Remove a checkpoint; its marker goes first. Idempotent."""
