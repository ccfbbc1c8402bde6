"""Bytes of all tensors that live, and the most that lived at one time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["LiveTensors", "resident_bytes"]


class LiveTensors(TorchDispatchMode):
    """Counts the storages of tensors that operations return, each once, until it is freed.

    A storage that is freed or allocated in place (`resize_`) is seen at the next operation.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._sizes: dict[int, Callable[[], int]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Iterable[Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, Tensor) and each.device.type == "cpu":
                self._add(each.untyped_storage())
        self.most = max(self.most, self.now())
        return found

    def now(self) -> int:
        """Bytes that live now."""
        return sum(size() for size in list(self._sizes.values()))

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._sizes:
            return
        reference = weakref.ref(storage, lambda _: self._sizes.pop(key, None))

        def size() -> int:
            living = reference()
            return 0 if living is None else living.nbytes()

        self._sizes[key] = size


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
