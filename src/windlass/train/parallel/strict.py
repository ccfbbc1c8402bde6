"""Gradient sums in a fixed order, so that they are bit-identical on 1, 2, 4, ... processes.

A batch is cut into a fixed number of shards, one microbatch each. They are the leaves of one binary tree, in the order
of rows: neighbours are summed first. Microbatch i of process r of w is leaf i * w + r, so the lower levels of the tree are
sums over processes and the upper ones sums over a process's microbatches; w is a power of two.

A sum of -0.0 becomes +0.0, because some ways to compute the same sum add zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = [
    "MicrobatchTree",
    "TreeReduceScatter",
    "all_gather",
    "reduce_scatter",
    "tree_all_reduce",
    "tree_reduce_scatter",
]

all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def tree_reduce_scatter(whole: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return this process's part of the sum of `whole` over the group, adding neighbours first. Collective.

    Sends as much as a reduce-scatter, and needs the memory of another `whole`.

    Args:
        whole: tensor of one axis; its size is a multiple of the group's size.
    """
    parts = torch.empty_like(whole)
    dist.all_to_all_single(parts, whole, group=group)
    return _sum_of(parts.view(group.size(), -1))


def tree_all_reduce(whole: Tensor, group: dist.ProcessGroup) -> None:
    """Sum over the group in place, adding neighbours first. Collective.

    Sends as much data as an all-reduce.
    """
    size, length = group.size(), whole.numel()
    padded = torch.nn.functional.pad(whole, (0, -length % size))
    part = tree_reduce_scatter(padded, group)
    all_gather(padded, part, group=group)
    whole.copy_(padded[:length])


def _sum_of(parts: Tensor) -> Tensor:
    """Return the sum over the first axis, whose size is a power of two, added up as a binary tree."""
    while len(parts) > 1:
        parts = parts[0::2] + parts[1::2]
    return parts[0]


class TreeReduceScatter:
    """Replacement for FSDP's reduce-scatter (`set_custom_reduce_scatter`).

    With replicas, FSDP sums the result over them by an all-reduce, whose order depends on the backend. So this class
    also sums over the replicas, and all but one of them contribute zeros to that all-reduce.
    """

    def __init__(self, replicas: dist.ProcessGroup | None = None) -> None:
        self._replicas = replicas

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate memory for FSDP's buffers."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp,  # a sum, as `parallelize` sets it
        async_op: bool = False,
    ) -> None:
        """Fill `output_tensor`. Collective; blocks the stream."""
        part = tree_reduce_scatter(input_tensor, group)
        if self._replicas is not None:
            tree_all_reduce(part, self._replicas)
            if self._replicas.rank() != 0:
                part.zero_()
        output_tensor.copy_(part)


class MicrobatchTree:
    """Sum of microbatches' gradients, merged like a binary counter: 0+1, 2+3, then those two sums.

    After each backward pass, which sums over processes, call `add`; after the last one `finish`. Needs memory for
    log2(microbatches) + 1 sets of gradients.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._stack: list[tuple[int, list[Tensor | None]]] = []

    def add(self) -> None:
        """Move the gradients of one microbatch out of the parameters."""
        grads = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        num_leaves = 1
        while self._stack and self._stack[-1][0] == num_leaves:
            grads = _merge(self._stack.pop()[1], grads)
            num_leaves *= 2
        self._stack.append((num_leaves, grads))

    def finish(self) -> None:
        """Store the sum as the parameters' gradients."""
        grads: list[Tensor | None] = [None] * len(self._parameters)
        while self._stack:
            grads = _merge(self._stack.pop()[1], grads)
        torch._foreach_add_([grad for grad in grads if grad is not None], 0.0)  # -0.0 becomes +0.0
        for parameter, grad in zip(self._parameters, grads, strict=True):
            parameter.grad = grad


def _merge(early: list[Tensor | None], late: list[Tensor | None]) -> list[Tensor | None]:
    both = [(first, second) for first, second in zip(early, late, strict=True) if first is not None is not second]
    if both:
        torch._foreach_add_([first for first, _ in both], [second for _, second in both])
    return [second if first is None else first for first, second in zip(early, late, strict=True)]
