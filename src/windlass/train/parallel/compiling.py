"""torch.compile for each block, and its cache as bytes that a checkpoint can store.

All blocks share one compiled graph, so compile time does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

__all__ = ["cache_artifacts", "compile_blocks", "load_artifacts"]


def compile_blocks(
    model: nn.Module, blocks: Sequence[nn.Module], *, backend: str | Callable[..., Any] = "inductor"
) -> None:
    """Compile the forward method of each block in place, or the whole model's if it names no blocks.

    Compilation happens at the first batch. A block's hooks are not compiled, so that FSDP's
    collectives do not break the graph.
    """
    for module in blocks or [model]:
        module.forward = torch.compile(module.forward, backend=backend)


def cache_artifacts() -> bytes | None:
    """Return this process's compiler cache, or None if it compiled nothing."""
    found = torch.compiler.save_cache_artifacts()
    return None if found is None else found[0]


def load_artifacts(data: bytes) -> bool:
    """Fill the compiler's caches to speed up the first step; return whether any of the data was usable.

    The bytes contain programs that are executed: load only what your own runs wrote. Bytes from another torch version or
    kind of device are ignored.
    """
    found = torch.compiler.load_cache_artifacts(data)
    return found is not None
