"""Gradient synchronization in only the last microbatch of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from windlass.train.parallel.apply import replicas_of

if TYPE_CHECKING:
    from torch import nn

__all__ = ["no_sync", "sync_gradients"]


@contextmanager
def no_sync(model: nn.Module, is_last: bool) -> Iterator[None]:
    """Run a microbatch without communicating gradients, unless it is the last one.

    Surrounds forward and backward. Does nothing for a single process. Accumulated gradients are unsharded: with `fsdp`
    this trades memory for communication.
    """
    _set(model, is_last)
    try:
        yield
    finally:
        _set(model, True)


def sync_gradients(model: nn.Module) -> None:
    """Sum accumulated gradients over data-parallel processes. Collective; used by pipelines."""
    replicas = replicas_of(model)
    if replicas is not None:
        replicas.sync()


def _set(model: nn.Module, is_synced: bool) -> None:
    replicas = replicas_of(model)
    if replicas is not None:
        replicas.is_synced = is_synced
    sharded: Any = model
    if hasattr(model, "set_requires_gradient_sync"):  # added by `fully_shard`, which a single process need not import
        sharded.set_requires_gradient_sync(is_synced)
        sharded.set_is_last_backward(is_synced)
