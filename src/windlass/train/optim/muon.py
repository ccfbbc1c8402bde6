"""Muon: orthogonalised momentum for matrices, AdamW for the rest, for plain and sharded parameters.

Matrices may be sharded; the work on their orthogonal factors is then divided between processes.

Legend: M rows and N columns of a matrix, S matrices of a stack (experts).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from windlass.train.optim.local import local_grads, local_part, local_parts

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Muon", "newton_schulz", "orthogonal_updates", "update_scale"]

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


class Muon(Optimizer):
    """Optimizer that orthogonalises the momentum of matrices.

    buffer = lerp(buffer, g, 1 - momentum); p -= lr * (scale * orthogonal(buffer, looked ahead) + decay * p).

    Each group's `algorithm` is muon (2-D parameters, and 3-D stacks of matrices) or adamw. Each sharded matrix is gathered
    on one process, orthogonalised and scattered, so that the work is divided between processes.

    Args:
        is_fused: whether AdamW uses a fused kernel; else one tensor at a time, bit-identical for any sharding.
        replicas: processes with identical plain parameters (DDP), which share the work on their matrices.

    Attributes:
        found_inf: tensor that is 1 if the step must be skipped, set by the skip guard (fused only); or None.
    Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers"; the rms scale: Liu et al. 2025, "Muon is scalable
        for LLM training", equation 4.
    """

    found_inf: Tensor | None = None

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 1e-3,
        momentum: float = 0.95,
        is_nesterov: bool = True,
        num_iterations: int = 5,
        scale: str = "rms",
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        is_fused: bool = True,
        replicas: ProcessGroup | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "algorithm": "muon",
            "momentum": momentum,
            "is_nesterov": is_nesterov,
            "num_iterations": num_iterations,
            "scale": scale,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "is_fused": is_fused,
        }
        super().__init__(params, defaults)
        self._replicas = replicas

    def ensure_state(self) -> None:
        """Initialize the state that parameters lack."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if state:
                    continue
                if group["algorithm"] == "muon":
                    state["momentum_buffer"] = torch.zeros_like(parameter)
                else:
                    device = parameter.device if group["is_fused"] else torch.device("cpu")
                    state["step"] = torch.zeros((), dtype=torch.float32, device=device)
                    state["exp_avg"] = torch.zeros_like(parameter)
                    state["exp_avg_sq"] = torch.zeros_like(parameter)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient. Collective if sharded or with `replicas`."""
        loss = None
        if closure is not None:
            loss = closure()
        with torch.no_grad():
            self.ensure_state()
            for group in self.param_groups:
                moved = [parameter for parameter in group["params"] if parameter.grad is not None]
                if moved:
                    (self._move_matrices if group["algorithm"] == "muon" else self._move_rest)(moved, group)
        return loss

    def _move_matrices(self, moved: list[Tensor], group: dict[str, Any]) -> None:
        weights, grads = local_parts(moved), local_grads(moved)
        buffers = local_parts(self.state[parameter]["momentum_buffer"] for parameter in moved)
        if self.found_inf is not None:
            grads = [torch.where(self.found_inf > 0, old, new) for old, new in zip(buffers, grads, strict=True)]
        torch._foreach_lerp_(buffers, grads, 1.0 - group["momentum"])
        ahead = torch._foreach_lerp(grads, buffers, group["momentum"]) if group["is_nesterov"] else buffers
        updates = orthogonal_updates(moved, ahead, group["num_iterations"], self._replicas)
        updates = self._scaled(moved, updates, group)
        torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        if self.found_inf is not None:
            torch._foreach_mul_(updates, 1.0 - self.found_inf)
        torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def _scaled(self, moved: Sequence[Tensor], updates: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        """Scale orthogonal updates by a factor that depends on their shape."""
        torch._foreach_mul_(updates, [update_scale(parameter.shape, group["scale"]) for parameter in moved])
        return updates

    def _move_rest(self, moved: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[parameter] for parameter in moved]
        adamw(
            local_parts(moved),
            local_grads(moved),
            local_parts(state["exp_avg"] for state in states),
            local_parts(state["exp_avg_sq"] for state in states),
            [],
            [local_part(state["step"]) for state in states],
            foreach=False,
            fused=group["is_fused"],
            found_inf=self.found_inf,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def update_scale(shape: tuple[int, ...] | torch.Size, kind: str) -> float:
    """Return the factor for an orthogonal update of this shape."""
    rows, columns = shape[-2], shape[-1]
    if kind == "spectral":
        return math.sqrt(max(1.0, rows / columns))
    return 0.2 * math.sqrt(max(rows, columns))
