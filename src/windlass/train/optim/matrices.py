"""Orthogonal factors of matrices that may be sharded, with the work divided between processes.

Legend: M rows and N columns of a matrix, S matrices of a stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["newton_schulz", "orthogonal_updates"]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x**3 and x**5, chosen for the steepest slope at 0. Source: Jordan et al. 2024, "Muon", section on Newton-Schulz."""

EPS = 1e-7

Group: TypeAlias = "ProcessGroup"


def newton_schulz(matrix_SMN: Tensor, num_iterations: int) -> Tensor:
    """Return approximately U V^T for each matrix U S V^T, with singular values of about 0.7 to 1.2.

    Leading dims are a stack. Uses bfloat16 on a GPU, else the matrix's type, because CPUs have no fast bfloat16.
    Cost: about 4 * M * M * N + 2 * M**3 floating point operations an iteration, M the shorter side.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix_SMN.shape[-2] > matrix_SMN.shape[-1]
    x_SMN = matrix_SMN.bfloat16() if matrix_SMN.device.type == "cuda" else matrix_SMN
    x_SMN = x_SMN.mT if is_tall else x_SMN
    norm_S11: Tensor = x_SMN.norm(dim=(-2, -1), keepdim=True)
    x_SMN = x_SMN / norm_S11.clamp(min=EPS)
    for _ in range(num_iterations):
        gram_SMM = x_SMN @ x_SMN.mT
        x_SMN = a * x_SMN + (b * gram_SMM + c * (gram_SMM @ gram_SMM)) @ x_SMN
    return (x_SMN.mT if is_tall else x_SMN).to(matrix_SMN.dtype)


def orthogonal_updates(
    parameters: Sequence[Tensor], moves: Sequence[Tensor], num_iterations: int, replicas: ProcessGroup | None
) -> list[Tensor]:
    """Return this process's part of the orthogonal factor of each move.

    Args:
        parameters: parameters, whose type and placement determine how the matrices are sharded.
        moves: local parts of the matrices to orthogonalise.
        replicas: processes with identical plain parameters.

    Collective, in the order of `parameters`, which must be equal on all processes.
    """
    done: list[Tensor | None] = [None] * len(parameters)
    shared: dict[Group | None, list[int]] = {}
    for number, parameter in enumerate(parameters):
        if isinstance(parameter, DTensor):
            group = _row_group(parameter)
            if parameter.ndim == 2 and group is not None:
                shared.setdefault(group, []).append(number)
            else:
                done[number] = _alone(parameter, moves[number], num_iterations)
        elif replicas is None or replicas.size() == 1:
            done[number] = newton_schulz(moves[number], num_iterations)
        else:
            shared.setdefault(None, []).append(number)
    for group, numbers in shared.items():
        if group is None:
            assert replicas is not None
            found = _replicated([moves[number] for number in numbers], num_iterations, replicas)
        else:
            rows = [parameters[number].shape[0] for number in numbers]
            found = _row_sharded([moves[number] for number in numbers], rows, num_iterations, group)
        for number, update in zip(numbers, found, strict=True):
            done[number] = update
    return [update for update in done if update is not None]


def _row_group(parameter: DTensor) -> ProcessGroup | None:
    """Return the group that shards only rows, in one mesh dimension, or None for any other placement."""
    cut = [place for place in range(parameter.device_mesh.ndim) if not parameter.placements[place].is_replicate()]
    if len(cut) != 1 or not parameter.placements[cut[0]].is_shard(0):
        return None
    group: ProcessGroup = parameter.device_mesh.get_group(cut[0])
    return group


def _alone(parameter: DTensor, move: Tensor, num_iterations: int) -> Tensor:
    """Orthogonalise without dividing the work: the whole local matrices of a stack, or a gathered matrix."""
    places = parameter.placements
    if parameter.ndim == 3 and all(place.is_replicate() or place.is_shard(0) for place in places):
        return newton_schulz(move, num_iterations) if move.numel() else move
    mesh = parameter.device_mesh
    spread = DTensor.from_local(move, mesh, places, shape=parameter.shape, stride=parameter.stride(), run_check=False)
    whole = newton_schulz(spread.full_tensor(), num_iterations)
    same = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    update: Tensor = same.redistribute(mesh, places).to_local()
    return update


def _replicated(moves: list[Tensor], num_iterations: int, group: ProcessGroup) -> list[Tensor]:
    """Orthogonalise every N-th matrix on each process, and send the results to the others."""
    rank, size = dist.get_rank(group), group.size()
    found = []
    for number, move in enumerate(moves):
        update = newton_schulz(move, num_iterations) if number % size == rank else torch.empty_like(move)
        found.append(update.contiguous())
    waits = [
        dist.broadcast(update, group_src=number % size, group=group, async_op=True)
        for number, update in enumerate(found)
    ]
    for wait in waits:
        wait.wait()
    return found


def _row_sharded(moves: list[Tensor], rows: list[int], num_iterations: int, group: ProcessGroup) -> list[Tensor]:
    """Orthogonalise one matrix per process in each round.

    The rows are sent to the matrix's owner, and the rows of the result are sent back.
    """
    size = group.size()
    found: list[Tensor] = []
    for begin in range(0, len(moves), size):
        found += _round(moves[begin : begin + size], rows[begin : begin + size], num_iterations, group)
    return found


def _round(moves: list[Tensor], rows: list[int], num_iterations: int, group: ProcessGroup) -> list[Tensor]:
    rank, size = dist.get_rank(group), group.size()
    sent = [_padded(move, _chunk(count, size)) for move, count in zip(moves, rows, strict=True)]
    empty = moves[0].new_empty(0)
    is_owner = rank < len(moves)
    mine = [torch.empty_like(sent[rank]) for _ in range(size)] if is_owner else [empty] * size
    _exchange(mine, [*sent, *([empty] * (size - len(sent)))], group)
    if is_owner:
        whole = newton_schulz(torch.cat(mine)[: rows[rank]], num_iterations)
        cut = [_padded(part, _chunk(rows[rank], size)) for part in _cut(whole, size)]
    else:
        cut = [empty] * size
    back = [torch.empty_like(part) for part in sent] + [empty] * (size - len(sent))
    _exchange(back, cut, group)
    return [part[: move.shape[0]] for part, move in zip(back, moves, strict=False)]


def _chunk(rows: int, size: int) -> int:
    """Return the number of rows in a full shard, as torch.chunk cuts them."""
    return -(-rows // size)


def _cut(whole: Tensor, size: int) -> list[Tensor]:
    step = _chunk(whole.shape[0], size)
    return [whole[number * step : (number + 1) * step] for number in range(size)]


def _padded(part: Tensor, rows: int) -> Tensor:
    if part.shape[0] == rows:
        return part.contiguous()
    return torch.cat([part, part.new_zeros(rows - part.shape[0], *part.shape[1:])])


def _exchange(into: list[Tensor], out: list[Tensor], group: ProcessGroup) -> None:
    """Exchange lists of tensors by an all-to-all on one flat buffer, the only form that gloo supports."""
    received = into[0].new_empty(sum(part.numel() for part in into))
    sizes_in, sizes_out = [part.numel() for part in into], [part.numel() for part in out]
    dist.all_to_all_single(received, torch.cat([part.flatten() for part in out]), sizes_in, sizes_out, group=group)
    for part, piece in zip(into, received.split(sizes_in), strict=True):
        part.copy_(piece.view_as(part))
