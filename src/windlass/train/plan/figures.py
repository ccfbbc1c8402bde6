"""Size of a model and cost per token, from a decoder's settings or a custom model built without weights."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.core.errors import Problem, SpecError
from windlass.train.hf.maps import adapted_layers
from windlass.train.model.config import LoRAConfig, ModelConfig
from windlass.train.model.flops import ParameterCounts, count_parameters, flops_per_token
from windlass.train.recipe import Recipe

__all__ = ["Figures", "figures_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Size and cost of a recipe's model.

    Attributes:
        flops_per_token: forward and backward, for a row of the recipe's length.
        vocab_size: vocabulary size; None if unknown.
        is_own: whether it is a custom model, whose activations are unknown.
    """

    counts: ParameterCounts
    flops_per_token: float
    vocab_size: int | None
    is_own: bool = False


def figures_of(recipe: Recipe) -> Figures:
    """Compute the figures of a model.

    A custom model is built on the meta device or, if that fails, on the CPU.

    Raises:
        SpecError: the user's code fails, or torch is not installed where it needs it.
    """
    length = recipe.data.sequence_length
    if isinstance(recipe.model, ModelConfig):
        counts, added = count_parameters(recipe.model), 0
        if isinstance(recipe.adapter, LoRAConfig):
            layers = adapted_layers(recipe.model, recipe.adapter)
            added = recipe.adapter.rank * sum(num_out + num_in for num_out, num_in in layers.values())
            score = recipe.model.d_model if recipe.model.head == "scalar" else 0
            counts = ParameterCounts(
                total=counts.total + added,
                active=counts.active + added,
                embedding=counts.embedding,
                frozen=counts.total - score,
            )
        each = flops_per_token(recipe.model, length, adapter_weights=added)
        return Figures(counts=counts, flops_per_token=each, vocab_size=recipe.model.vocab_size)
    try:
        import torch  # lazy: takes seconds, and a decoder does not need it
    except ModuleNotFoundError as error:
        message = f"model: cannot count {recipe.model.target}: torch is not installed"
        raise SpecError([Problem(message, "extra-missing", hint='pip install "windlass[train]"')]) from error
    from windlass.train.targets.model import build_own_model, flops_of, own_vocab_size

    try:
        model = build_own_model(recipe, recipe.model, device=torch.device("meta"))
    except SpecError:  # code that reads values while building fails on the meta device
        model = build_own_model(recipe, recipe.model)
    total = sum(parameter.numel() for parameter in model.parameters())
    tables = {id(module.weight): module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    embedding = sum(weight.numel() for weight in tables.values())
    return Figures(
        counts=ParameterCounts(total=total, active=total, embedding=embedding),
        flops_per_token=flops_of(model, length),
        vocab_size=own_vocab_size(recipe.model, model),
        is_own=True,
    )
