"""Custom models: how they are built and called, and what they cost."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from windlass.core.errors import Problem, SpecError
from windlass.train.targets.calling import call_target

if TYPE_CHECKING:
    from windlass.train.recipe import Recipe
    from windlass.train.targets.config import ModelTarget

__all__ = ["ForwardForm", "build_own_model", "flops_of", "form_of", "own_vocab_size"]


def build_own_model(recipe: Recipe, config: ModelTarget, *, device: torch.device | None = None) -> nn.Module:
    """Call the target with generators seeded from the recipe's seed, in the same way on every process.

    Args:
        device: device for new tensors; if None, the CPU, with initial values.

    Raises:
        SpecError: it fails, or does not return a module.
    """
    with torch.random.fork_rng(devices=[]), torch.device(device or "cpu"):
        torch.manual_seed(recipe.seed)
        made = call_target(config, "model", "model", seed=recipe.seed, recipe=recipe)
    if isinstance(made, nn.Module):
        return made
    message = f"model: {config.target} returned a {type(made).__name__}, not a torch.nn.Module"
    raise SpecError([Problem(message, "recipe-wrong", hint="return the module")])


class ForwardForm:
    """Calling convention of a model.

    Attributes:
        gives: sums: returns sums of losses for labels, like Decoder; logits: returns logits, or an object with a
            `logits` attribute.
        takes_documents: whether it has a parameter `documents_BT`.
    """

    def __init__(self, gives: Literal["sums", "logits"], takes_documents: bool) -> None:
        self.gives, self.takes_documents = gives, takes_documents


def form_of(model: nn.Module) -> ForwardForm:
    """Return the calling convention of a model, which the parameter names of its forward method determine."""
    names = inspect.signature(type(model).forward).parameters
    return ForwardForm("sums" if "labels_BT" in names else "logits", "documents_BT" in names)


def own_vocab_size(config: ModelTarget, model: nn.Module | None = None) -> int | None:
    """Return the argument `vocab_size`, else that attribute of the model or its config, or None if unknown."""
    found: Any = config.args.get("vocab_size")
    for holder in (model, getattr(model, "config", None)):
        found = getattr(holder, "vocab_size", None) if found is None else found
    return found if isinstance(found, int) and not isinstance(found, bool) and found > 0 else None


def flops_of(model: nn.Module, length: int) -> float:
    """Return the FLOPs per token: the model's `flops_per_token(length)`, else six for each weight in a matrix.

    Excludes embeddings that are only looked up, and attention, because it is unknown whether there is any.
    """
    own = getattr(model, "flops_per_token", None)
    if callable(own):
        return float(own(length))
    looked_up = {id(weight) for weight in _embeddings(model)}
    matrices = [weight for weight in model.parameters() if weight.dim() > 1 and id(weight) not in looked_up]
    return float(sum(6 * weight.numel() for weight in matrices))


def _embeddings(model: nn.Module) -> Iterator[Tensor]:
    """Yield the weight of each embedding that is not also used as the head."""
    heads = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    for module in model.modules():
        if isinstance(module, nn.Embedding) and id(module.weight) not in heads:
            yield module.weight
