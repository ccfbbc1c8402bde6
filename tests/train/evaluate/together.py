"""Several processes of a data-parallel group as threads, for code that only sums on the host."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from windlass.train.data.protocol import Share
from windlass.train.parallel.world import World

__all__ = ["together"]


class _Threads:
    """What `World` is to the code under test."""

    def __init__(self, share: Share, replica: int, group: _Group) -> None:
        self.share, self.size, self.device = share, group.size, torch.device("cpu")
        self.rank = replica * share.world + share.rank
        self._group = group

    def sum_on_host(self, values: Sequence[float]) -> list[float]:
        return self._group.sum(self.rank, values)


class _Group:
    def __init__(self, size: int) -> None:
        self.size = size
        self._barrier = threading.Barrier(size)
        self._values: list[Sequence[float]] = [()] * size

    def sum(self, rank: int, values: Sequence[float]) -> list[float]:
        self._values[rank] = values
        self._barrier.wait(timeout=300)
        total = [sum(column) for column in zip(*self._values, strict=True)]
        self._barrier.wait(timeout=300)
        return total


def together(function: Callable[[World], Any], *, world: int, replicas: int = 1) -> list[Any]:
    """What each process returns, by rank; `replicas` of them share each part of the data."""
    group = _Group(world * replicas)
    found: list[Any] = [None] * group.size

    def run(rank: int) -> None:
        place = _Threads(Share(rank=rank % world, world=world), rank // world, group)
        found[rank] = function(cast(World, place))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(group.size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    return found
