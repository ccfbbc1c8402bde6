"""Names of weights in windlass and in other formats: a table of rules for each format, without torch.

A rule is a pair of patterns. `{i}` stands for blocks and `{e}` for experts; in a rule with `{e}` only on the other side,
our tensor stacks several of the other format's tensors along its first axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.train.model.config import LoRAConfig, ModelConfig

__all__ = [
    "ATTENTION",
    "ROOT",
    "SWIGLU",
    "NameMap",
    "Weight",
    "WeightRule",
    "adapted_layers",
    "hf_names",
    "our_shapes",
]


@dataclass(frozen=True, slots=True)
class WeightRule:
    """Name of a weight in windlass and in the other format."""

    ours: str
    theirs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """Weight of a model, with its names in both formats.

    Attributes:
        ours: windlass's name.
        theirs: name in the other format; several if our tensor stacks them along a new first axis.
        shape: shape in windlass.
    """

    ours: str
    theirs: tuple[str, ...]
    shape: tuple[int, ...]

    @property
    def is_stacked(self) -> bool:
        """Return whether our tensor stacks several tensors from the other format."""
        return len(self.theirs) > 1

    @property
    def their_shape(self) -> tuple[int, ...]:
        """Shape of each tensor in the other format."""
        return self.shape[1:] if self.is_stacked else self.shape


@dataclass(frozen=True, slots=True)
class NameMap:
    """Rules for the names of weights in one format."""

    rules: tuple[WeightRule, ...]

    def weights(self, config: ModelConfig) -> Iterator[Weight]:
        """Yield the weights of a model, in the order of our modules.

        Raises:
            LookupError: no rule matches a weight; its name is the argument.
        """
        by_pattern = {rule.ours: rule.theirs for rule in self.rules}
        num_experts = config.moe.num_experts if config.moe is not None else 0
        for name, shape in our_shapes(config).items():
            pattern, block = _pattern(name)
            if pattern not in by_pattern:
                raise LookupError(name)
            theirs = by_pattern[pattern].replace("{i}", block)
            experts = range(num_experts) if "{e}" in theirs else range(1)
            yield Weight(ours=name, theirs=tuple(theirs.replace("{e}", str(e)) for e in experts), shape=shape)


def _pattern(name: str) -> tuple[str, str]:
    """Split `blocks.3.ffn.up.weight` into `blocks.{i}.ffn.up.weight` and `3`."""
    head, _, rest = name.partition(".")
    if head != "blocks":
        return name, ""
    block, _, rest = rest.partition(".")
    return f"blocks.{{i}}.{rest}", block


def our_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of each weight, in the order of a decoder's modules."""
    shapes: dict[str, tuple[int, ...]] = {"embed.weight": (config.vocab_size, config.d_model)}
    block = _block_shapes(config)
    for index in range(config.num_layers):
        shapes.update({f"blocks.{index}.{name}": shape for name, shape in block.items()})
    shapes["norm.weight"] = (config.d_model,)
    if config.head == "scalar":
        shapes["score.weight"] = (1, config.d_model)
    elif not config.is_tied:
        shapes["head.weight"] = (config.vocab_size, config.d_model)
    return shapes


def adapted_layers(config: ModelConfig, adapter: LoRAConfig) -> dict[str, tuple[int, int]]:
    """Return the name and shape of each matrix that an adapter is beside, in the order of a decoder's modules."""
    matrices = {name.removesuffix(".weight"): shape for name, shape in our_shapes(config).items() if len(shape) == 2}
    return {
        name: (shape[0], shape[1])
        for name, shape in matrices.items()
        if name.startswith("blocks.") and not name.endswith(".router") and adapter.picks(name)
    }


def _block_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    width = config.d_model
    shapes: dict[str, tuple[int, ...]] = {"attention_norm.weight": (width,)}
    shapes.update({f"attention.{name}": shape for name, shape in _attention_shapes(config).items()})
    if config.norm == "peri":
        shapes["attention_post_norm.weight"] = (width,)
    shapes["ffn_norm.weight"] = (width,)
    if config.moe is None:
        shapes.update({f"ffn.{name}": shape for name, shape in _swiglu_shapes(width, config.hidden).items()})
    else:
        shapes["moe.router.weight"] = (config.moe.num_experts, width)
        stacked = _swiglu_shapes(width, config.moe.hidden).items()
        shapes.update(
            {f"moe.{name.removesuffix('.weight')}": (config.moe.num_experts, *shape) for name, shape in stacked}
        )
        if config.moe.shared_hidden:
            shared = _swiglu_shapes(width, config.moe.shared_hidden).items()
            shapes.update({f"moe.shared.{name}": shape for name, shape in shared})
    if config.norm == "peri":
        shapes["ffn_post_norm.weight"] = (width,)
    return shapes


def _attention_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    attention = config.attention
    outs = {"q": attention.num_heads * config.head_dim, "k": config.num_kv_heads * config.head_dim}
    outs["v"] = outs["k"]
    shapes: dict[str, tuple[int, ...]] = {}
    for name, out in outs.items():
        shapes[f"{name}.weight"] = (out, config.d_model)
        if attention.bias:
            shapes[f"{name}.bias"] = (out,)
    shapes["o.weight"] = (config.d_model, outs["q"])
    if attention.qk_norm != "none":
        is_full = attention.qk_norm == "full"
        shapes["q_norm.weight"] = (outs["q"] if is_full else config.head_dim,)
        shapes["k_norm.weight"] = (outs["k"] if is_full else config.head_dim,)
    return shapes


def _swiglu_shapes(width: int, hidden: int) -> Mapping[str, tuple[int, ...]]:
    return {"gate.weight": (hidden, width), "up.weight": (hidden, width), "down.weight": (width, hidden)}


# Hugging Face. All families that we write use these names.
ROOT = (
    WeightRule("embed.weight", "model.embed_tokens.weight"),
    WeightRule("norm.weight", "model.norm.weight"),
    WeightRule("head.weight", "lm_head.weight"),
    WeightRule("score.weight", "score.weight"),
)
ATTENTION = (
    *(
        WeightRule(f"blocks.{{i}}.attention.{x}.weight", f"model.layers.{{i}}.self_attn.{x}_proj.weight")
        for x in "qkvo"
    ),
    *(WeightRule(f"blocks.{{i}}.attention.{x}.bias", f"model.layers.{{i}}.self_attn.{x}_proj.bias") for x in "qkv"),
    *(
        WeightRule(f"blocks.{{i}}.attention.{x}_norm.weight", f"model.layers.{{i}}.self_attn.{x}_norm.weight")
        for x in "qk"
    ),
)
SWIGLU = tuple(
    WeightRule(f"blocks.{{i}}.ffn.{name}.weight", f"model.layers.{{i}}.mlp.{name}_proj.weight")
    for name in ("gate", "up", "down")
)
EXPERTS = (
    WeightRule("blocks.{i}.moe.router.weight", "model.layers.{i}.mlp.gate.weight"),
    *(
        WeightRule(f"blocks.{{i}}.moe.{name}", f"model.layers.{{i}}.mlp.experts.{{e}}.{name}_proj.weight")
        for name in ("gate", "up", "down")
    ),
)
MIXTRAL_EXPERTS = (
    WeightRule("blocks.{i}.moe.router.weight", "model.layers.{i}.block_sparse_moe.gate.weight"),
    *(
        WeightRule(f"blocks.{{i}}.moe.{ours}", f"model.layers.{{i}}.block_sparse_moe.experts.{{e}}.{theirs}.weight")
        for ours, theirs in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
    ),
)
PRE_NORMS = (
    WeightRule("blocks.{i}.attention_norm.weight", "model.layers.{i}.input_layernorm.weight"),
    WeightRule("blocks.{i}.ffn_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
)
REORDERED_NORMS = (
    WeightRule("blocks.{i}.attention_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
    WeightRule("blocks.{i}.ffn_norm.weight", "model.layers.{i}.post_feedforward_layernorm.weight"),
)

_PRE = NameMap((*ROOT, *ATTENTION, *SWIGLU, *PRE_NORMS))
_REORDERED = NameMap((*ROOT, *ATTENTION, *SWIGLU, *REORDERED_NORMS))
_PRE_EXPERTS = NameMap((*ROOT, *ATTENTION, *EXPERTS, *PRE_NORMS))

_BY_MODEL_TYPE: Mapping[str, NameMap] = {
    "llama": _PRE,
    "mistral": _PRE,
    "qwen2": _PRE,
    "qwen3": _PRE,
    "olmo2": _REORDERED,
    "olmo3": _REORDERED,
    "qwen3_moe": _PRE_EXPERTS,
    "olmoe": _PRE_EXPERTS,
    "flex_olmo": NameMap((*ROOT, *ATTENTION, *EXPERTS, *REORDERED_NORMS)),
    "mixtral": NameMap((*ROOT, *ATTENTION, *MIXTRAL_EXPERTS, *PRE_NORMS)),
}


def hf_names(model_type: str) -> NameMap:
    """Return the names of weights for a Hugging Face `model_type`; raise KeyError if it is not supported."""
    return _BY_MODEL_TYPE[model_type]
