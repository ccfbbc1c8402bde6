"""Memory of the largest process by part, computed from the configuration alone.

An estimate. Weights, gradients and the optimiser's state are exact except for padding of shards. Activations count the
tensors that the decoder's layers keep for the backward pass, with attention that never stores its scores. Excludes
fragmentation and the memory of libraries (about 1 to 2 GB on a GPU).

Sources: Korthikanti et al. 2022, "Reducing activation recomputation", section 4, for what is kept; Rajbhandari et al. 2020,
"ZeRO", section 3, for weights, gradients and state.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from windlass.train.model.config import ModelConfig
from windlass.train.model.flops import ParameterCounts, count_parameters
from windlass.train.optim.config import AdamWConfig, DionConfig, LionConfig, MuonConfig, NorMuonConfig, OptimTarget
from windlass.train.parallel.config import BudgetCheckpointing, FullCheckpointing, SelectiveCheckpointing
from windlass.train.parallel.mesh import MeshShape
from windlass.train.plan.figures import figures_of
from windlass.train.recipe import Recipe

__all__ = ["MemoryEstimate", "block_bytes", "memory_of", "num_in_pipeline", "rows_at_once", "state_bytes"]

_CHUNK_LOGITS = 2**27
"""Logits in a chunk of the chunked loss on a GPU (train/optim/loss.py)."""

_MASTER = 4
"""Bytes per weight: master weights are float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Bytes that one process needs, by part.

    Attributes:
        weights, gradients, optimizer: this process's shard.
        gathered: whole blocks, in the precision of the computation, while they are used; copies for autocast.
        activations: tensors that the backward pass needs, for the microbatches in flight.
        logits: the head's output and its gradient.
    """

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    logits: int

    @property
    def total(self) -> int:
        """Return the sum of all parts."""
        return sum(getattr(self, field.name) for field in fields(self))


def memory_of(recipe: Recipe, shape: MeshShape, counts: ParameterCounts | None = None) -> MemoryEstimate:
    """Estimate the memory of the largest process.

    For custom models, activations and logits are left out.
    """
    model = recipe.model
    counts = counts or figures_of(recipe).counts
    is_sharded = shape.data in {"fsdp", "hsdp"}
    shards = shape.dp_shard * shape.cp if is_sharded else 1
    if not isinstance(model, ModelConfig):
        own = counts.total / shards
        state = state_bytes(recipe, counts) / shards
        weights = round(_MASTER * own)
        return MemoryEstimate(
            weights=weights, gradients=weights, optimizer=round(state), gathered=0, activations=0, logits=0
        )
    local = _stage_parameters(model, shape.pp) / shape.tp
    share = local / shards
    trained = share
    if counts.frozen:  # the adapter is not in the blocks, and is the only part with gradients
        trained = counts.trained / shards
        share += trained
    return MemoryEstimate(
        weights=round(_MASTER * share),
        gradients=round(_MASTER * trained),
        optimizer=round(trained * state_bytes(recipe, counts) / counts.trained),
        gathered=round(_gathered(recipe, model, shape, local, is_sharded=is_sharded)),
        activations=round(_activations(recipe, model, shape)),
        logits=round(_logits(recipe, model, shape)),
    )


def state_bytes(recipe: Recipe, counts: ParameterCounts | None = None) -> int:
    """Return the size of the optimizer's whole state in bytes; a custom optimizer counts as AdamW."""
    counts = counts or figures_of(recipe).counts
    embedding = 0 if counts.frozen else counts.embedding
    match recipe.optim:
        case AdamWConfig() | OptimTarget():
            return 2 * _MASTER * counts.trained
        case LionConfig():
            return _MASTER * counts.trained
        case MuonConfig() | NorMuonConfig() | DionConfig():  # row vectors and low-rank columns are not counted
            return _MASTER * (counts.trained - embedding) + 2 * _MASTER * embedding


def rows_at_once(recipe: Recipe, shape: MeshShape) -> int:
    """Return the number of rows in a microbatch of a process group."""
    data, strict = recipe.data, recipe.parallel.strict
    rows = data.batch_tokens // data.sequence_length
    if strict is not None:
        return max(1, rows // strict.shards)
    share = max(1, rows // shape.data_parallel)
    if shape.pp > 1:
        return max(1, share // num_in_pipeline(recipe, shape))
    if data.microbatch_tokens is not None:
        return min(share, max(1, data.microbatch_tokens // data.sequence_length))
    return share


def num_in_pipeline(recipe: Recipe, shape: MeshShape) -> int:
    """Return the number of microbatches that a process runs in a pipeline."""
    data = recipe.data
    share = data.batch_tokens // data.sequence_length // shape.data_parallel
    at_once = share if data.microbatch_tokens is None else data.microbatch_tokens // data.sequence_length
    return recipe.parallel.pipeline.microbatches_of(share, max(1, at_once))


def _block_parameters(model: ModelConfig) -> float:
    counts = count_parameters(model)
    return (counts.total - counts.embedding - model.d_model) / model.num_layers


def _stage_parameters(model: ModelConfig, stages: int) -> float:
    """Return the number of weights in the largest stage; the first and last also hold the embedding or head."""
    counts = count_parameters(model)
    ends = counts.embedding if stages == 1 else model.vocab_size * model.d_model
    return -(-model.num_layers // stages) * _block_parameters(model) + ends + model.d_model


def _gathered(recipe: Recipe, model: ModelConfig, shape: MeshShape, local: float, *, is_sharded: bool) -> float:
    """Return the bytes of two gathered blocks and of the root's weights, with unsharded gradients."""
    used, reduced = _size(recipe.parallel.precision), _size(recipe.parallel.reduce)
    if not is_sharded:
        return local * used if used < _MASTER else 0.0
    ends = model.vocab_size * model.d_model * (1 if model.is_tied or shape.pp > 1 else 2)
    block = _block_parameters(model)
    return (block * (2 * used + reduced) + ends * (used + reduced)) / shape.tp


def _size(precision: str) -> int:
    return 2 if precision == "bfloat16" else 4


def _activations(recipe: Recipe, model: ModelConfig, shape: MeshShape) -> float:
    """Return the bytes of the activations in a stage's blocks, for the microbatches in flight."""
    plan, size = recipe.parallel, _size(recipe.parallel.precision)
    tokens = rows_at_once(recipe, shape) * recipe.data.sequence_length / shape.cp
    layers = -(-model.num_layers // shape.pp)
    whole = block_bytes(model, size=size, is_compiled=plan.compile)
    kept = float(model.d_model * size)
    mode = plan.checkpointing
    if isinstance(mode, FullCheckpointing):
        again = layers // mode.every
        each = (layers - again) * whole + again * kept + whole
    elif isinstance(mode, SelectiveCheckpointing):
        each = layers * (kept + size * _products(model) / mode.keep_every) + whole
    elif isinstance(mode, BudgetCheckpointing):
        each = layers * max(kept, mode.share * whole) + whole
    else:
        each = layers * whole
    in_flight = 1
    if shape.pp > 1:
        is_all = plan.pipeline.schedule == "gpipe"
        num = num_in_pipeline(recipe, shape)
        in_flight = num if is_all else min(shape.pp, num)
    ends = model.d_model * (2 * _MASTER + size)
    # Tensor parallelism splits the sequence between layers, so all of it is divided.
    return tokens * (each * in_flight + ends) / shape.tp


def block_bytes(model: ModelConfig, *, size: int, is_compiled: bool) -> float:
    """Return the number of bytes per token that a block keeps for its backward pass.

    Counted from what autograd saves of our decoder, one operation at a time or compiled: a norm keeps its input and the
    normalised input in float32, and its output where a product takes it; compiled, its input and output alone. Attention
    keeps q, k, v and its output; the gate its two inputs, its output, and one at a time what the activation gave.

    Args:
        size: bytes of a value in the computation's precision.
    """
    d_model = model.d_model
    queries, groups = model.attention.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    hidden, copies = _hidden(model)
    num_after = 2 if model.norm == "peri" else 0
    if is_compiled:
        norms = (4 + num_after) * d_model * size
        per_head = (queries + groups) * size
    else:
        norms = 2 * (2 * _MASTER + size) * d_model + num_after * 2 * _MASTER * d_model
        per_head = (queries + groups) * 2 * _MASTER
    products = (2 * queries + 2 * groups + (3 if is_compiled else 4) * hidden + copies) * size
    return float(norms + (per_head if model.attention.qk_norm != "none" else 0) + products)


def _hidden(model: ModelConfig) -> tuple[int, int]:
    """Return the feed-forward channels per token, and how many values are copied to sort tokens by expert."""
    moe = model.moe
    if moe is None:
        return model.hidden, 0
    return moe.top_k * moe.hidden + moe.shared_hidden, 2 * moe.top_k * model.d_model + 2 * moe.num_experts


def _products(model: ModelConfig) -> float:
    """Return the number of values per token that a block's matrix products and attention output."""
    queries, groups = model.attention.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    return float(2 * queries + 2 * groups + 2 * model.d_model + 2 * _hidden(model)[0])


def _logits(recipe: Recipe, model: ModelConfig, shape: MeshShape) -> float:
    """Return the bytes of the logits in both precisions and of their gradient, or of chunks if the loss is chunked."""
    rows = rows_at_once(recipe, shape) * recipe.data.sequence_length / shape.cp
    count = rows * (1 if model.head == "scalar" else model.vocab_size) / shape.tp
    is_auto = recipe.loss.kind == "auto" and shape.tp == 1
    if recipe.loss.kind == "chunked" or (is_auto and count > 2 * _CHUNK_LOGITS):
        count = min(count, float(_CHUNK_LOGITS))
    return count * (_size(recipe.parallel.precision) + 4 + 4)
