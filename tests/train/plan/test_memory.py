from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.train.narrow import decoder_of
from windlass.train.model.config import ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.model.flops import count_parameters
from windlass.train.model.presets import preset
from windlass.train.optim.config import LossConfig
from windlass.train.parallel.config import FullCheckpointing
from windlass.train.parallel.mesh import MeshShape
from windlass.train.plan.memory import block_bytes, memory_of, rows_at_once, state_bytes
from windlass.train.resolve import resolve

ONE = MeshShape(data="none")
BATCH, LENGTH = 2, 64


def saved_bytes(config: ModelConfig) -> int:
    """What autograd keeps of a forward pass beside the weights, each storage once."""
    with torch.device("meta"):
        model = Decoder(config)
    model.to_empty(device="cpu")  # whatever it computes, it keeps as much
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, int] = {}
    held = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        held.append(tensor)
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    tokens = torch.randint(0, config.vocab_size, (BATCH, LENGTH))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(tokens, labels_BT=tokens, loss=LossConfig(kind="plain"))
    return sum(found.values())


@pytest.mark.parametrize("name", ["llama-1m", "olmo2-1b", "qwen3-0.6b", "moe-1m"])
def test_the_estimate_of_a_block_is_what_autograd_keeps(name: str) -> None:
    """Pre-norm, reordered with a norm on q and k, and per head, experts; fewer key and value heads than query ones."""
    whole = preset(name)
    attention = replace(whole.attention, num_heads=4, num_kv_heads=2, head_dim=32)
    config = replace(whole, d_model=64, hidden=160, vocab_size=64, attention=attention)
    one, three = (saved_bytes(replace(config, num_layers=layers)) for layers in (1, 3))
    measured = (three - one) / 2 / (BATCH * LENGTH)
    assert block_bytes(config, size=4, is_compiled=False) == pytest.approx(measured, rel=0.02)


def test_compiled_blocks_keep_less() -> None:
    config = preset("olmo2-7b")
    assert block_bytes(config, size=2, is_compiled=True) < 0.7 * block_bytes(config, size=2, is_compiled=False)


def test_sharding_divides_weights_gradients_and_state() -> None:
    recipe = resolve("olmo2-7b").recipe
    total = count_parameters(decoder_of(recipe)).total
    whole, sharded = memory_of(recipe, ONE), memory_of(recipe, MeshShape(data="fsdp", dp_shard=64))
    assert (whole.weights, whole.gradients, whole.optimizer) == (4 * total, 4 * total, 8 * total)
    assert sharded.weights == pytest.approx(4 * total / 64)
    assert sharded.optimizer == pytest.approx(8 * total / 64)
    copies = memory_of(recipe, MeshShape(data="hsdp", dp_replicate=8, dp_shard=8))
    assert copies.weights == pytest.approx(4 * total / 8)


def test_tensor_parallelism_divides_the_rest_too() -> None:
    recipe = resolve("olmo2-7b").recipe
    one = memory_of(recipe, MeshShape(data="fsdp", dp_shard=8))
    split = memory_of(recipe, MeshShape(data="fsdp", dp_shard=8, tp=2))
    assert split.activations == pytest.approx(one.activations / 2)
    assert split.weights == pytest.approx(one.weights / 2)


def test_computing_again_leaves_inputs_of_blocks_and_one_block() -> None:
    recipe = resolve("olmo2-7b").recipe
    again = replace(recipe, parallel=replace(recipe.parallel, checkpointing=FullCheckpointing()))
    tokens = rows_at_once(recipe, ONE) * recipe.data.sequence_length
    model = decoder_of(recipe)
    ends = model.d_model * 10
    block = block_bytes(model, size=2, is_compiled=True)
    assert memory_of(again, ONE).activations == tokens * (32 * model.d_model * 2 + block + ends)
    assert memory_of(recipe, ONE).activations == tokens * (32 * block + ends)


def test_state_of_optimisers() -> None:
    counts = count_parameters(decoder_of(resolve("tiny").recipe))
    assert state_bytes(resolve("tiny").recipe) == 8 * counts.total
    assert state_bytes(resolve("tiny", ["optim.kind=lion"]).recipe) == 4 * counts.total
    muon = state_bytes(resolve("tiny", ["optim.kind=muon"]).recipe)
    assert muon == 4 * (counts.total - counts.embedding) + 8 * counts.embedding


def test_chunks_bound_the_logits() -> None:
    plain = memory_of(resolve("olmo2-1b", ["loss.kind=plain"]).recipe, ONE).logits
    chunked = memory_of(resolve("olmo2-1b", ["loss.kind=chunked"]).recipe, ONE).logits
    assert plain == 8 * 4096 * 100_352 * 10
    assert chunked == 2**27 * 10
