"""torch.compile, block by block, and its results as bytes that can travel with a checkpoint.

Block by block, since all blocks share one compiled graph: the compiler's time does not grow with their number.
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
    """Compile the forward of each block, in place; the whole model's where it names no blocks.

    Nothing is compiled before the first batch. Hooks of a block stay outside of what is compiled, so that FSDP's
    collectives do not break the graph.
    """
    for module in blocks or [model]:
        module.forward = torch.compile(module.forward, backend=backend)


def cache_artifacts() -> bytes | None:
    """Return all that this process has compiled; None if it compiled nothing."""
    found = torch.compiler.save_cache_artifacts()
    return None if found is None else found[0]


def load_artifacts(data: bytes) -> bool:
    """Fill the compiler's caches, so that the first step need not wait for it; returns whether anything was of use.

    The bytes hold programs, which will run: load only what your own runs wrote. Bytes of another version of torch or of
    another kind of device are of no use, and of no harm.
    """
    found = torch.compiler.load_cache_artifacts(data)
    return found is not None
