"""Expert parallelism: each process holds some of the experts, and tokens are sent to their experts and back.

Experts are DTensors split on their first axis over `ep`, on a mesh separate from the world's; processes that hold
the same experts sum their gradients. The rest of the model is sharded as usual. No token is dropped.
Source: Lepikhin et al. 2020, "GShard", section 3.2.

Legend: P pairs of a token and an expert, R of them received, E experts, X experts of this process, D width, W processes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from windlass.train.model.moe import MoE, run_experts

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["expert_parameters", "split_experts"]

_NAMES = ("gate", "up", "down")


def split_experts(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split the experts in every MoE layer over the mesh of axis `ep`, in place.

    Their names stay the same.
    """
    for module in model.modules():
        if isinstance(module, MoE):
            for name in _NAMES:
                whole = getattr(module, name)
                split = distribute_tensor(whole.detach(), mesh, [Shard(0)], src_data_rank=None)
                setattr(module, name, nn.Parameter(split, requires_grad=whole.requires_grad))
            module.transport = _transport(module, mesh.get_group())


def expert_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the experts that are split, in the order of the model."""
    layers = [module for module in model.modules() if isinstance(module, MoE) and module.transport is not None]
    return [getattr(layer, name) for layer in layers for name in _NAMES]


def _transport(layer: MoE, group: dist.ProcessGroup) -> Callable[..., Tensor]:
    def carry(_: object, x_PD: Tensor, counts_E: Tensor) -> Tensor:
        """Return the outputs of the experts in the order of the rows. Collective.

        The host waits for the counts.
        """
        size = group.size()
        sent_WX = counts_E.view(size, -1)
        got_WX = torch.empty_like(sent_WX)
        dist.all_to_all_single(got_WX, sent_WX.contiguous(), group=group)
        sent, got = sent_WX.sum(dim=1).tolist(), got_WX.sum(dim=1).tolist()
        x_RD: Tensor = _AllToAll.apply(x_PD, got, sent, group)
        # Received rows are sorted by process, then expert; experts need them sorted by expert.
        owners_R = torch.arange(got_WX.shape[1], device=x_PD.device).repeat(size)
        order_R = owners_R.repeat_interleave(got_WX.flatten()).argsort(stable=True)
        gate, up, down = (_local(getattr(layer, name)).to(x_PD.dtype) for name in _NAMES)
        out_RD = run_experts(x_RD[order_R], got_WX.sum(dim=0), gate, up, down)
        back_RD = torch.empty_like(out_RD).index_copy(0, order_R, out_RD)
        out_PD: Tensor = _AllToAll.apply(back_RD, sent, got, group)
        return out_PD

    return carry


def _local(parameter: nn.Parameter) -> Tensor:
    assert isinstance(parameter, DTensor)
    local: Tensor = parameter.to_local()
    return local


class _AllToAll(torch.autograd.Function):
    """All-to-all that sends rows to the processes that hold their experts, and gradients back."""

    @staticmethod
    def forward(ctx: Any, x_PD: Tensor, received: list[int], sent: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.received, ctx.sent, ctx.group = received, sent, group
        out_RD = x_PD.new_empty((sum(received), *x_PD.shape[1:]))
        dist.all_to_all_single(out_RD, x_PD.contiguous(), received, sent, group=group)
        return out_RD

    @staticmethod
    def backward(ctx: Any, grad_RD: Tensor) -> tuple[Tensor, None, None, None]:
        grad_PD = grad_RD.new_empty((sum(ctx.sent), *grad_RD.shape[1:]))
        dist.all_to_all_single(grad_PD, grad_RD.contiguous(), ctx.sent, ctx.received, group=ctx.group)
        return grad_PD, None, None, None
