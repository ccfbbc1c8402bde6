"""Collectives for checkpoints: small JSON messages in a separate process group, without pickle."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from windlass.core.errors import WindlassError
from windlass.core.json_text import decode_json
from windlass.train.checkpoint.tensors import bytes_of
from windlass.train.errors import CheckpointError

if TYPE_CHECKING:
    from windlass.train.parallel.world import World

__all__ = ["Collectives"]

T = TypeVar("T")
_TIMEOUT = timedelta(hours=4)
"""Long enough for the slowest upload; a process that dies is detected immediately, by its connections."""


class Collectives:
    """Gloo group used only for checkpoints, so that a thread can use it during training.

    All processes create it together. Messages are sequential: each waits for the previous one.
    """

    def __init__(self, world: World) -> None:
        self.rank, self.size = world.rank, world.size
        self._group: Any = None
        if self.size > 1:
            import torch.distributed as dist

            self._group = dist.new_group(backend="gloo", timeout=_TIMEOUT, group_desc="windlass-checkpoint")

    @property
    def is_main(self) -> bool:
        """Return whether this process commits."""
        return self.rank == 0

    def gather(self, value: Any) -> list[Any] | None:
        """Return the JSON-safe values of all processes by rank, on rank 0 only; None elsewhere. Collective."""
        if self.size == 1:
            return [value]
        import torch.distributed as dist

        content = json.dumps(value).encode()
        length = self._reduce(len(content), dist.ReduceOp.MAX)
        mine = torch.zeros(length, dtype=torch.uint8)
        mine[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        parts = [torch.empty_like(mine) for _ in range(self.size)] if self.is_main else None
        dist.gather(mine, parts, dst=0, group=self._group)
        if parts is None:
            return None
        return [decode_json(_bytes(part).rstrip(b"\0")) for part in parts]

    def share(self, value: Any) -> Any:
        """Broadcast a JSON-safe value from rank 0. Collective."""
        return decode_json(self.share_bytes(json.dumps(value).encode() if self.is_main else b""))

    def share_bytes(self, content: bytes) -> bytes:
        """Broadcast bytes from rank 0. Collective."""
        if self.size == 1:
            return content
        import torch.distributed as dist

        length = torch.tensor([len(content)], dtype=torch.int64)
        dist.broadcast(length, src=0, group=self._group)
        message = torch.empty(int(length), dtype=torch.uint8)
        if self.is_main and content:
            message.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        dist.broadcast(message, src=0, group=self._group)
        return content if self.is_main else _bytes(message)

    def everyone(self, is_true: bool) -> bool:
        """Return whether `is_true` is true on all processes. Collective."""
        if self.size == 1:
            return is_true
        import torch.distributed as dist

        return self._reduce(int(is_true), dist.ReduceOp.MIN) == 1

    def together(self, action: Callable[[], T], *, on_all: bool = True) -> T | None:
        """Run `action` on all processes or only on rank 0; if it fails on any, raise on all. Collective.

        Returns:
            The result of `action`; None if it was not called.

        Raises:
            Exception: this process's error; on other processes a CheckpointError with the error of the lowest failed rank.
        """
        result: T | None = None
        error: Exception | None = None
        try:
            if on_all or self.is_main:
                result = action()
        except Exception as caught:  # noqa: BLE001  raised below, once all processes know
            error = caught
        if not self.everyone(error is None):
            errors = self.gather(None if error is None else _to_data(error))
            found = next((data for data in errors if data is not None), None) if errors is not None else None
            message, hint, code = self.share(found)
            raise error or CheckpointError(message, hint=hint, code=code)
        return result

    def _reduce(self, mine: int, how: Any) -> int:
        import torch.distributed as dist

        value = torch.tensor([mine], dtype=torch.int64)
        dist.all_reduce(value, how, group=self._group)
        return int(value)


def _to_data(error: Exception) -> list[str]:
    if not isinstance(error, WindlassError):
        hint = "another process failed; see its output"
        error = CheckpointError(f"{type(error).__name__}: {error}", hint=hint, code="worker-failed")
    return [error.message, error.hint, error.code]


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(bytes_of(tensor))
