"""Replicated weights, whose gradients are summed over processes in buckets during the backward pass.

Works on any module, keeps plain parameters and names, and sums instead of averaging. A parameter that gets a gradient
on only some processes counts as zero on the others; one without gradients on all processes keeps none. Source of the idea: Li et al. 2020, "PyTorch Distributed", section 3.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from windlass.train.optim.local import local_part
from windlass.train.parallel.strict import tree_all_reduce

__all__ = ["Replicas", "agree"]

_BUCKET_BYTES = 25 * 2**20


class _Work(Protocol):
    def wait(self) -> object: ...


@dataclass(frozen=True)
class _Flight:
    """Bucket that is being reduced: its gradients, then a 1 for each gradient that exists."""

    bucket: Sequence[nn.Parameter]
    flat: Tensor
    work: _Work | None


class Replicas:
    """Sum of parameters' gradients over a group at the end of each backward pass, if `is_synced`.

    Attributes:
        is_synced: whether the next backward pass communicates; if false, gradients accumulate in `grad`.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        group: dist.ProcessGroup,
        *,
        dtype: torch.dtype,
        is_strict: bool = False,
        bucket_bytes: int = _BUCKET_BYTES,
    ) -> None:
        """Register hooks on the parameters.

        Args:
            dtype: type in which gradients are summed.
            is_strict: whether to sum in a fixed tree.
            bucket_bytes: approximate size of a bucket of gradients, last layers first.
        """
        self.is_synced = True
        self._group = group
        self._dtype = dtype
        self._is_strict = is_strict
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._buckets = list(_bucket(reversed(parameters), bucket_bytes))
        self._places = {parameter: place for place, bucket in enumerate(self._buckets) for parameter in bucket}
        self._missing: list[int] = []
        self._flights: list[_Flight] = []
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._note)

    @property
    def group(self) -> dist.ProcessGroup:
        """Group of processes that hold the same parameters."""
        return self._group

    def sync(self) -> None:
        """Sum the accumulated gradients. Collective.

        Call this after backward passes with `is_synced` off.
        """
        self._finish()

    def _note(self, parameter: Tensor) -> None:
        """Record that a gradient is complete.

        Its bucket is sent once it and all previous buckets are complete.
        """
        if not self.is_synced:
            return
        if not self._missing:
            self._missing = [len(bucket) for bucket in self._buckets]
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)
        assert isinstance(parameter, nn.Parameter)
        self._missing[self._places[parameter]] -= 1
        # In the order of buckets, not of gradients: all processes must send buckets in the same order.
        while len(self._flights) < len(self._buckets) and self._missing[len(self._flights)] == 0:
            self._send(self._buckets[len(self._flights)])

    def _send(self, bucket: Sequence[nn.Parameter]) -> None:
        there = torch.tensor([parameter.grad is not None for parameter in bucket], dtype=self._dtype)
        grads = [_local_grad(parameter).flatten().to(self._dtype) for parameter in bucket]
        flat = torch.cat([*grads, there.to(grads[0].device, non_blocking=True)])
        work = None
        if self._is_strict:
            tree_all_reduce(flat, self._group)
        else:
            work = dist.all_reduce(flat, group=self._group, async_op=True)
        self._flights.append(_Flight(bucket, flat, work))

    def _finish(self) -> None:
        """Send incomplete buckets at the end of the backward pass, wait for all of them, and store the sums."""
        for bucket in self._buckets[len(self._flights) :]:
            self._send(bucket)
        for flight in self._flights:
            if flight.work is not None:
                flight.work.wait()
            *grads, there = flight.flat.split([*(local_part(one).numel() for one in flight.bucket), len(flight.bucket)])
            for place, (parameter, grad) in enumerate(zip(flight.bucket, grads, strict=True)):
                # Reading the flag waits for the device; only needed for a parameter without a gradient here.
                if parameter.grad is not None or there[place] > 0:
                    _put_grad(parameter, grad.view(local_part(parameter).shape))
        self._missing, self._flights = [], []


def _bucket(parameters: Iterable[nn.Parameter], bucket_bytes: int) -> Iterable[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    size = 0
    for parameter in parameters:
        bucket.append(parameter)
        size += local_part(parameter).numel() * parameter.element_size()
        if size >= bucket_bytes:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


def _local_grad(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        return torch.zeros_like(local_part(parameter.detach()))
    return local_part(parameter.grad)


def _put_grad(parameter: nn.Parameter, grad: Tensor) -> None:
    """Store the sum as the gradient, without a copy for plain parameters with the same dtype."""
    if parameter.grad is not None and isinstance(parameter.grad, DTensor):
        parameter.grad.to_local().copy_(grad)
    elif isinstance(parameter, DTensor):
        spec = parameter.detach()
        assert isinstance(spec, DTensor)
        parameter.grad = DTensor.from_local(grad.to(parameter.dtype), spec.device_mesh, spec.placements)
    else:
        parameter.grad = grad.to(parameter.dtype)


def agree(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Broadcast a module's weights and buffers from the group's first process. Collective."""
    source = dist.get_global_rank(group, 0) if group is not None else 0
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(local_part(tensor.detach()), src=source, group=group)
