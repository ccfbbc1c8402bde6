"""Layer-by-layer comparison of two models on the same tokens.

Legend: B rows, T tokens of a row.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from windlass.core.errors import UsageError

__all__ = ["LayerCheck", "LayerDifference", "compare_layers"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDifference:
    """Difference between two models in the output of one layer.

    Attributes:
        name: windlass's name: `embed`, `blocks.3.attention`, `blocks.3.ffn`, `blocks.3` (the residual stream), `norm`, `logits`.
        difference: largest absolute difference; infinite if a value is not finite.
        scale: largest absolute value of the second model.
    """

    name: str
    difference: float
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCheck:
    """Result of a comparison, with the layers in order of computation."""

    points: tuple[LayerDifference, ...]
    tolerance: float

    @property
    def first(self) -> LayerDifference | None:
        """First layer that differs by more than the tolerance, or None if there is none."""
        return next((point for point in self.points if not point.difference <= self.tolerance), None)

    @property
    def logits(self) -> LayerDifference:
        """Difference in the logits, which are the last layer."""
        return self.points[-1]

    def __str__(self) -> str:
        if self.first is None:
            return f"equal within {self.tolerance:g}: logits differ by at most {self.logits.difference:.3g}"
        return (
            f"they differ from {self.first.name} on: by {self.first.difference:.3g}, largest value "
            f"{self.first.scale:.3g}; logits by {self.logits.difference:.3g}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Names that a model class uses for the modules of each layer; `{i}` is the block's number."""

    root: str
    blocks: str
    embed: str
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    norm: str


_LAYOUTS = (
    _Layout(
        root="blocks.0.attention.q",
        blocks="blocks",
        embed="embed",
        parts=(("attention", ("attention",)), ("ffn", ("ffn", "moe"))),
        norm="norm",
    ),
    _Layout(
        root="model.layers.0.self_attn",
        blocks="model.layers",
        embed="model.embed_tokens",
        parts=(("attention", ("self_attn",)), ("ffn", ("mlp",))),
        norm="model.norm",
    ),
    _Layout(
        root="blocks.0.attention.w_q",
        blocks="blocks",
        embed="embeddings",
        parts=(("attention", ("attention",)), ("ffn", ("feed_forward", "feed_forward_moe"))),
        norm="lm_head.norm",
    ),
)


def compare_layers(ours: nn.Module, theirs: nn.Module, tokens_BT: Tensor, *, tolerance: float = 1e-5) -> LayerCheck:
    """Run both models on the same tokens and compare them layer by layer.

    Runs in eval mode, without gradients.

    Each may be a decoder of windlass, transformers or OLMo-core; both whole and on one device. Costs both forward
    passes and the memory of all layers' outputs.

    Raises:
        UsageError: an unknown model class, or models of different sizes.
    """
    left, right = _outputs(ours, tokens_BT), _outputs(theirs, tokens_BT)
    if left.keys() != right.keys():
        only = sorted(left.keys() ^ right.keys())
        raise UsageError(
            f"one of the models has no {only[0]}", hint="compare models of the same size", code="nothing-to-compare"
        )
    points = tuple(_point(name, left[name], right[name]) for name in left)
    return LayerCheck(points=points, tolerance=tolerance)


def _point(name: str, left: Tensor, right: Tensor) -> LayerDifference:
    if left.numel() != right.numel():
        shapes = f"{tuple(left.shape)} and {tuple(right.shape)}"
        raise UsageError(
            f"{name} has shapes {shapes}", hint="compare models of the same size", code="nothing-to-compare"
        )
    difference = float((left.float().reshape(-1) - right.float().reshape(-1)).abs().max())
    scale = float(right.float().abs().max())
    return LayerDifference(name=name, difference=math.inf if math.isnan(difference) else difference, scale=scale)


def _outputs(model: nn.Module, tokens_BT: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    was_training = model.training
    model.eval()
    with ExitStack() as stack:
        for name, module in _places(model):
            stack.callback(module.register_forward_hook(_keeper(found, name)).remove)
        with torch.no_grad():
            found["logits"] = _first_tensor(model(tokens_BT))
    model.train(was_training)
    return found


def _keeper(found: dict[str, Tensor], name: str) -> Any:
    def keep(module: nn.Module, given: object, made: object) -> None:
        found[name] = _first_tensor(made)

    return keep


def _first_tensor(made: Any) -> Tensor:
    if isinstance(made, Tensor):
        return made.detach()
    if hasattr(made, "logits"):
        return _first_tensor(made.logits)
    return _first_tensor(made[0])


def _places(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    modules = dict(model.named_modules())
    layout = next((known for known in _LAYOUTS if known.root in modules), None)
    if layout is None:
        raise UsageError(
            f"unknown model class {type(model).__name__}",
            hint="pass a decoder of windlass, transformers or OLMo-core",
            code="nothing-to-compare",
        )
    yield "embed", modules[layout.embed]
    count = sum(
        1
        for name in modules
        if name.startswith(f"{layout.blocks}.") and name.count(".") == layout.blocks.count(".") + 1
    )
    for block in range(count):
        prefix = f"{layout.blocks}.{block}"
        for name, candidates in layout.parts:
            yield f"blocks.{block}.{name}", _one_of(modules, prefix, candidates)
        yield f"blocks.{block}", modules[prefix]
    yield "norm", modules[layout.norm]


def _one_of(modules: dict[str, nn.Module], prefix: str, names: Sequence[str]) -> nn.Module:
    return next(modules[f"{prefix}.{name}"] for name in names if f"{prefix}.{name}" in modules)
