"""Adapters of low rank: nothing at the start, trained alone, switched off, merged."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from windlass.core.errors import SpecError
from windlass.train.errors import CheckpointError
from windlass.train.model.adapters import (
    LoRALinear,
    adapter_off,
    add_adapter,
    check_base,
    is_of_adapter,
    merged_weights,
    num_adapter_weights,
    sample_base,
)
from windlass.train.model.config import AttentionConfig, LoRAConfig, ModelConfig, MoEConfig
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights

MODEL = ModelConfig(
    d_model=16, num_layers=2, vocab_size=32, hidden=24, attention=AttentionConfig(num_heads=2, bias=True), max_length=16
)
TOKENS_BT = torch.arange(8).reshape(2, 4)


def adapted(adapter: LoRAConfig, config: ModelConfig = MODEL, *, is_trained: bool = True) -> Decoder:
    model = Decoder(config)
    init_weights(model, 3)
    add_adapter(model, config, adapter)
    init_weights(model, 3)
    if is_trained:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("lora_b"):
                    parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    return model.eval()


def outputs(model: Decoder) -> Tensor:
    with torch.no_grad():
        found = model(TOKENS_BT)
    assert isinstance(found, Tensor)
    return found


def test_a_new_adapter_changes_nothing_and_is_the_same_for_a_seed() -> None:
    plain = Decoder(MODEL)
    init_weights(plain, 3)
    model, again = (adapted(LoRAConfig(rank=4), is_trained=False) for _ in range(2))
    assert torch.equal(outputs(model), outputs(plain.eval()))
    layer = model.get_submodule("blocks.1.ffn.down")
    assert isinstance(layer, LoRALinear)
    assert float(layer.lora_a.detach().std()) == pytest.approx(LoRALinear.initial_std(24), rel=0.3)
    assert torch.equal(layer.lora_a, again.get_parameter("blocks.1.ffn.down.lora_a"))


def test_only_the_adapter_is_trained() -> None:
    model = adapted(LoRAConfig(rank=4, targets=("*.attention.q", "*.ffn.*")))
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    layers = [f"blocks.{i}.{name}" for i in range(2) for name in ("attention.q", "ffn.gate", "ffn.up", "ffn.down")]
    assert trained == [f"{layer}.lora_{matrix}" for layer in layers for matrix in "ab"]
    assert all(is_of_adapter(name) for name in trained)
    assert num_adapter_weights(model) == 2 * 4 * (32 + 3 * 40)


@pytest.mark.parametrize("adapter", [LoRAConfig(rank=4, alpha=6), LoRAConfig(rank=4, alpha=6, rslora=True)])
def test_merged_weights_compute_the_same(adapter: LoRAConfig) -> None:
    model = adapted(adapter)
    merged = Decoder(MODEL)
    merged.load_state_dict(merged_weights(model))
    assert torch.allclose(outputs(model), outputs(merged.eval()), atol=1e-6)
    assert adapter.scale == pytest.approx(3.0 if adapter.rslora else 1.5)


def test_an_adapter_is_switched_off_for_a_reference() -> None:
    model = adapted(LoRAConfig(rank=4))
    plain = Decoder(MODEL)
    init_weights(plain, 3)
    with adapter_off(model):
        assert torch.equal(outputs(model), outputs(plain.eval()))
    assert not torch.allclose(outputs(model), outputs(plain), atol=1e-4)


def test_dropout_is_for_training_only() -> None:
    model = adapted(LoRAConfig(rank=4, dropout=0.5))
    assert torch.equal(outputs(model), outputs(model))
    model.train()
    assert not torch.equal(outputs(model), outputs(model))


def test_experts_keep_their_router() -> None:
    config = ModelConfig(
        d_model=16,
        num_layers=1,
        vocab_size=32,
        hidden=24,
        attention=AttentionConfig(num_heads=2),
        moe=MoEConfig(num_experts=2, top_k=1, hidden=8, shared_hidden=8),
    )
    model = adapted(LoRAConfig(rank=2), config)
    names = [name for name, module in model.named_modules() if isinstance(module, LoRALinear)]
    assert names == [
        *(f"blocks.0.attention.{x}" for x in "qkvo"),
        *(f"blocks.0.moe.shared.{x}" for x in ("gate", "up", "down")),
    ]


@pytest.mark.parametrize("glob", ["head", "*.atention.q", "*.attention_norm"])
def test_a_glob_that_matches_nothing_is_refused(glob: str) -> None:
    with pytest.raises(SpecError, match="matches no linear layer of the blocks"):
        add_adapter(Decoder(MODEL), MODEL, LoRAConfig(targets=("*.attention.k", glob)))


def test_another_base_is_recognized() -> None:
    model = adapted(LoRAConfig(rank=4))
    samples = sample_base(model)
    check_base(samples, samples, "here")
    with torch.no_grad():
        model.get_parameter("blocks.0.ffn.up.weight").mul_(1.001)
    with pytest.raises(CheckpointError, match=r"another base model than here: blocks\.0\.ffn\.up\.weight differs"):
        check_base(sample_base(model), samples, "here")
