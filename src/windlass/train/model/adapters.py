"""Adapters of low rank (LoRA) beside frozen linear layers.

y = x W^T + scale * dropout(x) A^T B^T; W is frozen, B begins at zero. Source: Hu et al. 2021, "LoRA", section 4.1.

Legend: R rank, I input channels, O output channels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from windlass.core.errors import Problem, SpecError
from windlass.core.names import nearest
from windlass.train.errors import CheckpointError
from windlass.train.hf.maps import adapted_layers
from windlass.train.model.config import LoRAConfig, ModelConfig
from windlass.train.optim.groups import plain_name

__all__ = [
    "LoRALinear",
    "adapter_off",
    "adapter_scales",
    "adapter_weights",
    "add_adapter",
    "base_weights",
    "check_base",
    "has_dropout",
    "is_of_adapter",
    "merge",
    "merged_weights",
    "num_adapter_weights",
    "sample_base",
    "sampled",
]

_NUM_SAMPLED = 16
"""Values of each frozen weight by which a checkpoint recognizes its base model."""


class LoRALinear(nn.Linear):
    """Linear layer with an adapter; its own parameters keep their names."""

    def __init__(self, base: nn.Linear, config: LoRAConfig) -> None:
        nn.Module.__init__(self)  # not nn.Linear's, which allocates the weight again
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.scale, self.dropout, self.is_on = config.scale, config.dropout, True
        like = base.weight
        self.lora_a = nn.Parameter(torch.empty(config.rank, base.in_features, device=like.device, dtype=like.dtype))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, config.rank, device=like.device, dtype=like.dtype))
        with torch.no_grad():
            self.lora_a.normal_(std=self.initial_std(base.in_features))

    @staticmethod
    def initial_std(num_inputs: int) -> float:
        """Return the standard deviation of A: that of PEFT's uniform distribution up to 1 / sqrt(I)."""
        return float((3 * num_inputs) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., I) to (..., O)."""
        y = F.linear(x, self.weight, self.bias)
        if not self.is_on:
            return y
        low = F.linear(F.dropout(x, self.dropout, self.training), self.lora_a)
        return y + F.linear(low, self.lora_b) * self.scale


def add_adapter(model: nn.Module, config: ModelConfig, adapter: LoRAConfig) -> None:
    """Freeze a decoder and add an adapter to it, in place; a scalar head is trained beside the adapter.

    Call it before the model is distributed.

    Raises:
        SpecError: a glob of `targets` matches no linear layer that can be adapted.
    """
    _check_targets(config, adapter)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("score."))
    for name in adapted_layers(config, adapter):
        parent, _, child = name.rpartition(".")
        layer = model.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        setattr(model.get_submodule(parent), child, LoRALinear(layer, adapter))


def _check_targets(config: ModelConfig, adapter: LoRAConfig) -> None:
    names = list(adapted_layers(config, LoRAConfig()))
    problems = []
    for number, glob in enumerate(adapter.targets):
        if not any(fnmatchcase(name, glob) for name in names):
            closest = nearest(glob, names)
            hint = f"did you mean `{closest}`?" if closest else f"such layers are named like {', '.join(names[:2])}"
            message = f"adapter.targets.{number} {glob!r} matches no linear layer of the blocks"
            problems.append(Problem(message, "unmatched-glob", None, hint))
    if problems:
        raise SpecError(problems)


def is_of_adapter(name: str) -> bool:
    """Return whether a parameter is trained beside a frozen base: a part of the adapter, or a scalar head."""
    return name.endswith((".lora_a", ".lora_b")) or name.startswith("score.")


def num_adapter_weights(model: nn.Module) -> int:
    """Return the number of weights of an adapter; 0 if the model has none."""
    layers = [module for module in model.modules() if isinstance(module, LoRALinear)]
    return sum(layer.lora_a.numel() + layer.lora_b.numel() for layer in layers)


def has_dropout(model: nn.Module) -> bool:
    """Return whether an adapter of the model drops inputs while training."""
    return any(isinstance(module, LoRALinear) and module.dropout > 0 for module in model.modules())


@contextmanager
def adapter_off(model: nn.Module) -> Iterator[None]:
    """Compute with the base model alone, such as for a reference; needs no second copy."""
    layers = [module for module in model.modules() if isinstance(module, LoRALinear)]
    before = [layer.is_on for layer in layers]
    try:
        for layer in layers:
            layer.is_on = False
        yield
    finally:
        for layer, was_on in zip(layers, before, strict=True):
            layer.is_on = was_on


def merge(weight_OI: Tensor, a_RI: Tensor, b_OR: Tensor, scale: float) -> Tensor:
    """Return a frozen weight with its update, in the adapter's type."""
    return weight_OI.to(a_RI.dtype) + scale * (b_OR @ a_RI)


@torch.no_grad()
def merged_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's weights by plain name as if it had no adapter, each updated; gathers sharded ones. Collective.

    Only adapted and sharded weights are copied, so this costs their memory.
    """
    found = {plain_name(name): whole(value) for name, value in model.state_dict().items()}
    for path, module in model.named_modules():
        if isinstance(module, LoRALinear):
            name = plain_name(path)
            a_RI, b_OR = found.pop(f"{name}.lora_a"), found.pop(f"{name}.lora_b")
            found[f"{name}.weight"] = merge(found[f"{name}.weight"], a_RI, b_OR, module.scale)
    return found


@torch.no_grad()
def adapter_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a model's adapter by plain name, sharded ones gathered. Collective."""
    state = {plain_name(name): value for name, value in model.state_dict().items()}
    return {name: whole(value) for name, value in state.items() if is_of_adapter(name)}


@torch.no_grad()
def base_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the frozen weights beside a model's adapter by plain name, sharded ones gathered. Collective."""
    state = {plain_name(name): value for name, value in model.state_dict().items()}
    return {name: whole(value) for name, value in state.items() if not is_of_adapter(name)}


def adapter_scales(model: nn.Module) -> dict[str, float]:
    """Return the factor of each adapted layer's update, by plain name."""
    return {plain_name(path): each.scale for path, each in model.named_modules() if isinstance(each, LoRALinear)}


def sample_base(model: nn.Module) -> dict[str, Tensor]:
    """Return some values of each frozen weight, by which a checkpoint recognizes its base. Collective."""
    return {name: sampled(value) for name, value in base_weights(model).items()}


def whole(weight: Tensor) -> Tensor:
    """Return a weight, gathered if it is sharded. Collective."""
    if not hasattr(weight, "device_mesh"):
        return weight
    from torch.distributed.tensor import DTensor  # lazy: 0.5 s, and a single process does not need it

    assert isinstance(weight, DTensor)
    return weight.full_tensor()


def sampled(weight: Tensor) -> Tensor:
    """Return at most 16 evenly spaced values of a weight, in float32 on the CPU."""
    flat = weight.detach().flatten()
    return flat[:: max(1, len(flat) // _NUM_SAMPLED)][:_NUM_SAMPLED].float().cpu().clone()


def check_base(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], source: str) -> None:
    """Compare values sampled from a base with those of the base that an adapter was trained beside.

    Raises:
        CheckpointError: they differ; the message names a weight.
    """
    for name, value in found.items():
        if name in wanted and not torch.equal(value, wanted[name].cpu()):
            raise CheckpointError(
                f"the adapter was trained beside another base model than {source}: {name} differs",
                hint="start from the model that it was trained with, or train a new adapter in another folder",
                code="checkpoint-mismatch",
            )
