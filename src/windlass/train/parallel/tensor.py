"""Tensor parallelism for a decoder: matrices are split over processes, the residual stream along the sequence.

Columns of q, k, v, gate and up; rows of o and down; rows of embedding and head, so that no process holds all logits.
Norms and residual additions each work on part of the tokens (sequence parallelism).
Sources: Shoeybi et al. 2019, "Megatron-LM", section 3; Korthikanti et al. 2022, section 4.2.

Legend: B rows, T tokens, D width.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from windlass.train.model.decoder import Block

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from windlass.train.model.decoder import Decoder

__all__ = ["settle_gradients", "split_matrices"]


def split_matrices(model: Decoder, mesh: DeviceMesh) -> None:
    """Split a decoder's matrices over the mesh of axis `tp`, in place.

    Their names stay the same.

    The residual stream becomes a DTensor split along the sequence, so its shape still has the whole length.
    """
    outer: dict[str, ParallelStyle] = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
        "norm": SequenceParallel(),
    }
    if model.head is not None:
        outer["head"] = ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())
    parallelize_module(model, mesh, {name: style for name, style in outer.items() if getattr(model, name) is not None})
    for block in model.blocks.values():
        assert isinstance(block, Block)
        parallelize_module(block, mesh, _block_plan(block))
    if model.head is None and model.norm is not None:
        # A tied head has no separate style: it takes whole rows, and its logits are gathered.
        model.norm.register_forward_hook(lambda _, args, x_BTD: x_BTD.redistribute(placements=[Replicate()]))
        model.register_forward_hook(lambda _, args, out: out.full_tensor() if isinstance(out, DTensor) else out)


def _block_plan(block: Block) -> dict[str, ParallelStyle]:
    """Return parallel styles by module name, for any position of the norms."""
    rows = RowwiseParallel(output_layouts=Shard(1), use_local_output=False)
    plan: dict[str, ParallelStyle] = {
        "attention": _gathered(4),
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.o": rows,
        "ffn": _gathered(1),
        "ffn.gate": ColwiseParallel(),
        "ffn.up": ColwiseParallel(),
        "ffn.down": rows,
    }
    for name in ("attention_norm", "ffn_norm", "attention_post_norm", "ffn_post_norm"):
        if getattr(block, name, None) is not None:
            plan[name] = SequenceParallel()
    if block.attention.q_norm is not None:
        style = _HeadNorm() if block.attention.is_normed_per_head else _WholeNorm()
        plan |= {"attention.q_norm": style, "attention.k_norm": style}
    return plan


def _gathered(num_inputs: int) -> PrepareModuleInput:
    """Return a style that gathers the first input; the other inputs are not tensors."""
    rest = (None,) * (num_inputs - 1)
    return PrepareModuleInput(
        input_layouts=(Shard(1), *rest), desired_input_layouts=(Replicate(), *rest), use_local_output=False
    )


class _NormStyle(ParallelStyle):
    """Style for a norm within attention, on this process's heads; every process holds the whole weight."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, _replicate_weight, self._take, self._give)

    @staticmethod
    def _take(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        raise NotImplementedError

    @staticmethod
    def _give(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
        raise NotImplementedError


class _HeadNorm(_NormStyle):
    """Norm over each head (B, T, heads, size), split along the heads."""

    @staticmethod
    def _take(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        return DTensor.from_local(inputs[0], mesh, [Shard(2)], run_check=False)

    @staticmethod
    def _give(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
        return output.to_local()


class _WholeNorm(_NormStyle):
    """Norm over all heads at once (B, T, heads * size), gathered because its mean is over all heads."""

    @staticmethod
    def _take(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
        return DTensor.from_local(inputs[0], mesh, [Shard(2)], run_check=False).redistribute(placements=[Replicate()])

    @staticmethod
    def _give(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
        return output.redistribute(placements=[Shard(2)]).to_local()


def _replicate_weight(name: str, module: nn.Module, mesh: DeviceMesh) -> None:
    for own, parameter in list(module.named_parameters(recurse=False)):
        whole = distribute_tensor(parameter.detach(), mesh, [Replicate()], src_data_rank=None)
        module.register_parameter(own, nn.Parameter(whole))


def settle_gradients(model: nn.Module) -> None:
    """Sum partial gradients, such as those of norms, as soon as they exist.

    Only for parameters that FSDP does not manage: code after the backward pass may use a gradient's local part as
    its value. Call it after parameters are allocated, because hooks are not transferred to new ones.
    """

    def settle(parameter: Tensor) -> None:
        grad = parameter.grad
        assert isinstance(parameter, DTensor)
        if isinstance(grad, DTensor) and grad.placements != parameter.placements:
            parameter.grad = grad.redistribute(placements=parameter.placements)

    for parameter in model.parameters():
        if isinstance(parameter, DTensor) and parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(settle)
