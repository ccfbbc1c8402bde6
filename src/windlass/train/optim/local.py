"""The local part of each tensor, used so that elementwise work skips DTensor's dispatch."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.distributed.tensor import DTensor

__all__ = ["local_grads", "local_part", "local_parts"]


def local_part(tensor: Tensor) -> Tensor:
    """Return a DTensor's local shard, sharing its memory, or a plain tensor itself."""
    if not isinstance(tensor, DTensor):
        return tensor
    part: Tensor = tensor.to_local()
    return part


def local_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the local part of each tensor, including empty shards, so that lists stay aligned."""
    return [local_part(tensor) for tensor in tensors]


def local_grads(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the local part of each gradient, for parameters that have one."""
    return [local_part(grad) for parameter in parameters if (grad := parameter.grad) is not None]
