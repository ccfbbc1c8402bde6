"""Settings of a decoder, as data; importable without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal

from windlass.config.annotations import Diagnostic, Doc, Key, Range

__all__ = [
    "AttentionConfig",
    "LinearScaling",
    "Llama3Scaling",
    "LoRAConfig",
    "MoEConfig",
    "ModelConfig",
    "RopeConfig",
    "StoredAdapter",
    "YarnScaling",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    """Positions divided by a factor. Source: Chen et al. 2023, "Extending context window", section 3."""

    factor: Annotated[float, Range(min=1), Doc("Factor by which the context grows.")]
    kind: Literal["linear"] = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Low frequencies divided, high ones kept, and a smooth transition between.

    Source: Llama 3.1 model card and configuration.
    """

    factor: Annotated[float, Range(min=1), Doc("Factor by which the context grows.")] = 8.0
    low_freq_factor: Annotated[
        float, Range(above=0), Doc("Wavelengths above the original length divided by this are scaled.")
    ] = 1.0
    high_freq_factor: Annotated[
        float, Range(above=0), Doc("Wavelengths below the original length divided by this are kept.")
    ] = 4.0
    old_length: Annotated[int, Range(min=1), Doc("Original context length.")] = 8192
    kind: Literal["llama3"] = "llama3"


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """NTK by parts, with a scaling factor on the attention. Source: Peng et al. 2023, "YaRN", section 3."""

    factor: Annotated[float, Range(min=1), Doc("Factor by which the context grows.")]
    old_length: Annotated[int, Range(min=1), Doc("Original context length.")]
    beta_fast: Annotated[float, Range(above=0), Doc("Number of rotations above which positions are unchanged.")] = 32.0
    beta_slow: Annotated[float, Range(above=0), Doc("Number of rotations below which positions are divided.")] = 1.0
    attention_factor: Annotated[
        float | None, Range(above=0), Doc("Factor for cos and sin; if null, derived from `factor`.")
    ] = None
    truncate: Annotated[bool, Doc("Round the start and end of the YaRN ramp to whole channels.")] = True
    kind: Literal["yarn"] = "yarn"

    def channel(self, rotations: float, theta: float, size: int) -> float:
        """Return the channel pair, as a fraction, that makes this many rotations within the original length."""
        return size * math.log(self.old_length / (rotations * 2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embeddings. Source: Su et al. 2021, "RoFormer"."""

    theta: Annotated[float, Range(above=1, max=1e30), Doc("Base of the frequencies.")] = 10_000.0
    scaling: Annotated[LinearScaling | Llama3Scaling | YarnScaling | None, Doc("Method for extending the context.")] = (
        None
    )
    partial: Annotated[float, Range(above=0, max=1), Doc("Fraction of each head that is rotated.")] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConfig:
    """Settings for attention layers, which differ only by their window."""

    num_heads: Annotated[int, Range(min=1), Doc("Number of query heads.")]
    num_kv_heads: Annotated[
        int | None, Range(min=1), Doc("Number of key and value heads; if null, as many as query heads.")
    ] = None
    head_dim: Annotated[int | None, Range(min=1), Doc("Size of each head; if null, d_model / num_heads.")] = None
    bias: Annotated[bool, Doc("Add a bias to q, k and v.")] = False
    qk_norm: Annotated[
        Literal["none", "full", "head"], Doc("Apply RMSNorm to q and k, over all heads at once or per head.")
    ] = "none"
    window: Annotated[
        int | None, Range(min=1), Doc("Number of tokens in the sliding window, including the current one.")
    ] = None
    window_pattern: Annotated[
        tuple[bool, ...], Doc("Whether each layer in a repeating group has the window; if empty, all layers have it.")
    ] = ()
    scale: Annotated[float | None, Range(above=0), Doc("Factor for scores; if null, 1 / sqrt(head_dim).")] = None
    soft_cap: Annotated[float | None, Range(above=0), Doc("Cap on scores: cap * tanh(score / cap).")] = None
    backend: Annotated[
        Literal["auto", "sdpa", "flex", "varlen"], Doc("Attention kernel; `auto` chooses one for the hardware.")
    ] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoEConfig:
    """Dropless mixture of experts instead of the feed-forward layer. Source: Gale et al. 2022, "MegaBlocks"."""

    num_experts: Annotated[int, Range(min=2), Doc("Number of experts per layer.")]
    top_k: Annotated[int, Range(min=1), Doc("Number of experts per token.")] = 2
    hidden: Annotated[int, Range(min=1), Doc("Hidden size of each expert.")]
    gate: Annotated[Literal["softmax", "sigmoid"], Doc("Function applied to router scores.")] = "softmax"
    normalize: Annotated[bool, Doc("Normalize the weights of the chosen experts to sum to 1.")] = True
    balance_loss: Annotated[float, Range(min=0), Doc("Weight of the load-balancing loss.")] = 0.01
    router_z_loss: Annotated[float, Range(min=0), Doc("Weight of the router's z-loss.")] = 0.0
    shared_hidden: Annotated[
        int, Range(min=0), Doc("Hidden size of an expert that every token uses; 0 for no such expert.")
    ] = 0

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        if self.top_k > self.num_experts:
            message = f"a token takes {self.top_k} experts of {self.num_experts}"
            yield "top_k", message, "shape-conflict", "lower `top_k` or raise `num_experts`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer; `model: NAME` is a preset, `model: hf:PATH` reads a folder's config.json."""

    IS_ASSUMED: ClassVar[bool] = True

    kind: Literal["decoder"] = "decoder"
    d_model: Annotated[int, Range(min=1), Doc("Width of the residual stream.")]
    num_layers: Annotated[int, Range(min=1), Doc("Number of blocks.")]
    vocab_size: Annotated[int, Range(min=1), Doc("Size of the vocabulary.")]
    hidden: Annotated[int, Range(min=1), Doc("Hidden size of the feed-forward layer (SwiGLU); not used with experts.")]
    attention: Annotated[AttentionConfig, Doc("Settings of the attention layers.")]
    max_length: Annotated[int, Range(min=1), Doc("Maximum sequence length.")] = 2048
    norm: Annotated[
        Literal["pre", "reordered", "peri"],
        Doc("Position of norms: before each layer, after it (OLMo 2 and 3), or both."),
    ] = "pre"
    norm_eps: Annotated[float, Range(above=0, max=1), Doc("Epsilon that norms add to the mean square.")] = 1e-5
    rope: Annotated[RopeConfig, Doc("Position embeddings.")] = RopeConfig()
    window_rope: Annotated[RopeConfig | None, Doc("Position embeddings of layers with a window; if null, `rope`.")] = (
        None
    )
    rope_pattern: Annotated[
        tuple[bool, ...],
        Doc("Whether each layer in a repeating group has position embeddings; if empty, all layers have them."),
    ] = ()
    moe: Annotated[MoEConfig | None, Doc("Experts instead of the feed-forward layer.")] = None
    head: Annotated[
        Literal["vocabulary", "scalar"], Doc("Output at each token: logits, or one number, as reward models have.")
    ] = "vocabulary"
    is_tied: Annotated[bool, Doc("Share the weights of the embedding and the head.")] = False
    embed_scale: Annotated[float | None, Range(above=0), Doc("Factor for embeddings.")] = None
    logit_soft_cap: Annotated[float | None, Range(above=0), Doc("Cap on logits: cap * tanh(logit / cap).")] = None
    init_std: Annotated[
        float, Range(above=0), Doc("Standard deviation of initial weights (normal, truncated at 3).")
    ] = 0.02
    family: Annotated[
        Literal["llama", "olmo2", "olmo3", "qwen3", "custom"],
        Doc("Model family whose Hugging Face format is used for exports."),
    ] = "custom"

    @classmethod
    def from_shorthand(cls, value: str) -> ModelConfig:
        """Return a preset or, for `hf:FOLDER`, the model in its config.json; raise ValueError with similar names."""
        if value.startswith("hf:"):
            from windlass.train.hf.config import model_of_folder  # lazy: few recipes use `hf:`

            return model_of_folder(value.removeprefix("hf:"))
        from windlass.train.model.presets import preset  # lazy: the table is needed only for names

        return preset(value)

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads."""
        return self.attention.num_kv_heads or self.attention.num_heads

    @property
    def head_dim(self) -> int:
        """Size of each head."""
        return self.attention.head_dim or self.d_model // self.attention.num_heads

    def window_of(self, layer: int) -> int | None:
        """Return the size of a layer's window, including the current token; None stands for all previous tokens."""
        pattern = self.attention.window_pattern
        return self.attention.window if not pattern or pattern[layer % len(pattern)] else None

    def rope_of(self, layer: int) -> RopeConfig | None:
        """Return the position embeddings for a layer, or None if it has none."""
        if self.rope_pattern and not self.rope_pattern[layer % len(self.rope_pattern)]:
            return None
        return self.window_rope if self.window_rope is not None and self.window_of(layer) is not None else self.rope

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        heads = self.attention.num_heads
        if self.attention.head_dim is None and self.d_model % heads:
            message = f"d_model {self.d_model} does not divide into {heads} heads"
            yield "attention.num_heads", message, "shape-conflict", "change one of them, or give `attention.head_dim`"
        elif self.head_dim % 2:
            message = f"a head of {self.head_dim} is odd, and rotary embeddings rotate pairs"
            yield "attention.num_heads", message, "shape-conflict", "set an even `attention.head_dim`"
        rotated = int(self.head_dim * self.rope.partial)
        if rotated % 2 and not self.head_dim % 2:
            message = f"rope.partial {self.rope.partial} rotates {rotated} channels of {self.head_dim}; the number must be even"
            yield "rope.partial", message, "shape-conflict", f"write {(rotated + 1) / self.head_dim}"
        if heads % self.num_kv_heads:
            message = f"{heads} query heads do not divide into {self.num_kv_heads} key and value heads"
            yield "attention.num_kv_heads", message, "shape-conflict", f"choose a divisor of {heads}"
        yield from self._check_windows()

    def _check_windows(self) -> Iterator[Diagnostic]:
        own = self.attention
        if own.window is None and own.window_pattern:
            message = "window_pattern is set without a window"
            yield "attention.window_pattern", message, "setting-unused", "set `attention.window`, or remove it"
        if own.window is None and self.window_rope is not None:
            message = "window_rope is set without a window"
            yield "window_rope", message, "setting-unused", "set `attention.window`, or remove it"
        if own.soft_cap is not None and own.backend == "varlen":
            message = f"attention backend varlen does not support scores capped at {own.soft_cap}"
            yield "attention.backend", message, "shape-conflict", "write `auto` or `flex`"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRAConfig:
    """New adapter: an update of low rank beside each of some frozen matrices. Source: Hu et al. 2021, "LoRA"."""

    IS_ASSUMED: ClassVar[bool] = True

    kind: Literal["lora"] = "lora"
    rank: Annotated[int, Range(min=1), Doc("Rank of each update.")] = 16
    alpha: Annotated[
        float, Range(above=0), Doc("Updates are scaled by alpha / rank, or with `rslora` by alpha / sqrt(rank).")
    ] = 32.0
    rslora: Annotated[bool, Doc("Scale by the root of the rank, so that high ranks learn as fast as low ones.")] = False
    dropout: Annotated[float, Range(min=0, max=0.99), Doc("Dropout on the inputs of updates while training.")] = 0.0
    targets: Annotated[
        tuple[str, ...],
        Doc("Globs for names of linear layers, such as `*.attention.q`; if empty, all in the blocks except routers."),
    ] = ()

    @property
    def scale(self) -> float:
        """Factor of the update. Source of `rslora`: Kalajdzievski 2023, "A rank stabilization scaling factor"."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def picks(self, name: str) -> bool:
        """Return whether a layer with this name is adapted."""
        return not self.targets or any(fnmatchcase(name, glob) for glob in self.targets)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAdapter:
    """Trained adapter to go on from, with its own rank, alpha and targets."""

    IS_ASSUMED: ClassVar[bool] = True

    kind: Literal["stored"] = "stored"
    path: Annotated[
        str, Key("from"), Doc("A checkpoint of a run with an adapter, a folder of these, or a folder of PEFT.")
    ]
    dropout: Annotated[float, Range(min=0, max=0.99), Doc("Dropout on the inputs of updates while training.")] = 0.0
