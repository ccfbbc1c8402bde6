"""Global norm of the gradients, and clipping to a maximum norm, without a host sync."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import functional as F

from windlass.train.optim.local import local_part, local_parts
from windlass.train.parallel.strict import all_gather

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["clip", "finish_gradients", "grad_norm", "tensor_norms"]

EPS = 1e-6
"""Added to the norm before dividing by it, as torch does."""


def clip(
    parameters: Iterable[Tensor],
    max_norm: float | None,
    *,
    is_strict: bool = False,
    stages: ProcessGroup | None = None,
) -> Tensor:
    """Scale the gradients to a global norm of at most `max_norm`; return the previous norm as a device scalar.

    Completes pending sums first, so that an optimiser can then work on shards.

    Args:
        max_norm: maximum norm; if None, the norm is only measured.
        is_strict: bit-identical for any sharding of rows; slower.
        stages: pipeline stages with other parameters, over which squares are summed too.

    Collective where gradients are sharded.
    """
    moved = [parameter for parameter in parameters if parameter.grad is not None]
    finish_gradients(moved)
    grads = [parameter.grad for parameter in moved if parameter.grad is not None]
    with torch.no_grad():
        norm = grad_norm(grads, is_strict=is_strict, stages=stages)
        if max_norm is not None and grads:
            factor = torch.clamp(max_norm / (norm + EPS), max=1.0)
            torch._foreach_mul_(local_parts(grads), factor)
    return norm


def finish_gradients(parameters: Iterable[Tensor]) -> None:
    """Complete partial sums of gradients, such as those of norms under sequence parallelism, in one reduction.

    Idempotent. Collective if there are any.
    """
    pending: dict[tuple[ProcessGroup, ...], list[Tensor]] = {}
    for parameter in parameters:
        grad = parameter.grad
        if isinstance(grad, DTensor) and any(place.is_partial() for place in grad.placements):
            mesh = grad.device_mesh
            groups = tuple(mesh.get_group(dim) for dim, place in enumerate(grad.placements) if place.is_partial())
            pending.setdefault(groups, []).append(parameter)
    with torch.no_grad():
        for groups, members in pending.items():
            _sum_parts(groups, members)


def _sum_parts(groups: Sequence[ProcessGroup], members: Sequence[Tensor]) -> None:
    parts = [local_part(grad) for member in members if (grad := member.grad) is not None]
    flat = torch.cat([part.flatten() for part in parts])
    for group in groups:
        dist.all_reduce(flat, group=group)
    sums = flat.split([part.numel() for part in parts])
    for member, part, total in zip(members, parts, sums, strict=True):
        grad = member.grad
        assert isinstance(grad, DTensor)
        places = [Replicate() if place.is_partial() else place for place in grad.placements]
        member.grad = DTensor.from_local(
            total.view_as(part), grad.device_mesh, places, run_check=False, shape=grad.shape, stride=grad.stride()
        )


def grad_norm(grads: Sequence[Tensor], *, is_strict: bool = False, stages: ProcessGroup | None = None) -> Tensor:
    """Return the global norm of the gradients, which is equal on all processes."""
    if not grads and stages is None:
        return torch.zeros(())
    if is_strict:
        return _strict_norm(grads)
    if stages is None and not any(isinstance(grad, DTensor) for grad in grads):
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(grads))))
        return norm
    total = torch.zeros((), device=local_part(grads[0]).device if grads else None)
    for groups, members in _by_groups(grads).items():
        norms = torch._foreach_norm([part for part in local_parts(members) if part.numel()] or [total.clone()])
        squares = torch.linalg.vector_norm(torch.stack(norms)).square()
        for group in groups:
            dist.all_reduce(squares, group=group)
        total += squares
    if stages is not None:
        dist.all_reduce(total, group=stages)
    return total.sqrt()


def tensor_norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the norm of each tensor as a device scalar, with one reduction for all. Collective if sharded."""
    norms: list[Tensor] = [torch.zeros(())] * len(tensors)
    places: dict[tuple[ProcessGroup, ...], list[int]] = {}
    for number, tensor in enumerate(tensors):
        places.setdefault(_groups_of(tensor), []).append(number)
    for groups, numbers in places.items():
        parts = local_parts(tensors[number] for number in numbers)
        sums_N = torch.stack([torch.linalg.vector_norm(part).float().square() for part in parts])
        for group in groups:
            dist.all_reduce(sums_N, group=group)
        for number, value in zip(numbers, sums_N.unbind(), strict=True):
            norms[number] = value.sqrt()
    return norms


def _by_groups(grads: Iterable[Tensor]) -> dict[tuple[ProcessGroup, ...], list[Tensor]]:
    """Group gradients by the process groups that shard them, over which their squares must be summed."""
    found: dict[tuple[ProcessGroup, ...], list[Tensor]] = {}
    for grad in grads:
        found.setdefault(_groups_of(grad), []).append(grad)
    return found


def _groups_of(grad: Tensor) -> tuple[ProcessGroup, ...]:
    if not isinstance(grad, DTensor):
        return ()
    mesh = grad.device_mesh
    if any(place.is_partial() for place in grad.placements):
        raise ValueError("a tensor with pending partial sums has no norm: call finish_gradients first")
    return tuple(mesh.get_group(dim) for dim, place in enumerate(grad.placements) if not place.is_replicate())


def _strict_norm(grads: Sequence[Tensor]) -> Tensor:
    """Return the norm computed from float64 sums of squares per row, summed in the order of the model."""
    sums = [_rows(local_part(grad)) for grad in grads]
    cut: dict[tuple[ProcessGroup, ...], list[int]] = {}
    for number, grad in enumerate(grads):
        groups = _groups_of(grad)
        if groups:
            cut.setdefault(groups, []).append(number)
    for groups, numbers in cut.items():
        assert len(groups) == 1, "strict mode shards by rows only"
        whole = _gather([sums[number] for number in numbers], [grads[number].shape[0] for number in numbers], groups[0])
        for number, rows in zip(numbers, whole, strict=True):
            sums[number] = rows
    return torch.cat(sums).sum().sqrt().float()


def _rows(grad: Tensor) -> Tensor:
    if grad.ndim < 2:
        return grad.double().square().flatten()
    return grad.double().square().flatten(1).sum(dim=1)


def _gather(parts: Sequence[Tensor], rows: Sequence[int], group: ProcessGroup) -> list[Tensor]:
    """Gather the row sums from all shards in the order of rows, once for all tensors."""
    size = group.size()
    steps = [-(-count // size) for count in rows]
    padded = [F.pad(part, (0, step - part.shape[0])) for part, step in zip(parts, steps, strict=True)]
    flat = torch.cat(padded)
    gathered = flat.new_empty(size * flat.shape[0])
    all_gather(gathered, flat, group=group)
    pieces = gathered.view(size, -1).split(steps, dim=1)
    return [piece.flatten()[:count] for piece, count in zip(pieces, rows, strict=True)]
