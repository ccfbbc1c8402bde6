"""Settings of OLMo-core: those that we have, and those that we refuse by name."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from tests.train.olmo_core.written import block, model_data, rope
from windlass.core.errors import SpecError
from windlass.train.hf.config import from_hf, to_hf
from windlass.train.model.config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from windlass.train.model.rope import frequencies
from windlass.train.olmo_core.config import from_olmo_core

_SCALING = "olmo_core.nn.rope."


def test_olmo2() -> None:
    config = from_olmo_core({"model": model_data(), "train_module": {"max_sequence_length": 4096}})
    assert (config.family, config.norm, config.attention.qk_norm) == ("olmo2", "reordered", "full")
    assert (config.d_model, config.num_layers, config.vocab_size, config.hidden) == (32, 4, 97, 48)
    assert config.rope == RopeConfig(theta=500_000.0)
    assert config.max_length == 4096


def test_llama_and_qwen3() -> None:
    llama = block({"qk_norm": None, "n_kv_heads": 2}, name="default")
    config = from_olmo_core(model_data(llama))
    assert (config.family, config.norm, config.attention.num_kv_heads) == ("llama", "pre", 2)
    qwen = block({"use_head_qk_norm": True, "head_dim": 12}, name="default")
    config = from_olmo_core(model_data(qwen, tie_word_embeddings=True))
    assert (config.family, config.attention.head_dim, config.attention.qk_norm, config.is_tied) == (
        "qwen3",
        12,
        "head",
        True,
    )


def test_a_factor_on_scores() -> None:
    assert from_olmo_core(model_data(block({"softmax_scale": 0.25}))).attention.scale == 0.25


def test_the_older_name_of_attention() -> None:
    old = block()
    old["attention"] = old.pop("sequence_mixer")
    assert from_olmo_core(model_data(old)) == from_olmo_core(model_data())


def _windows(first: bool, last: bool, layers: int) -> tuple[int | None, ...]:
    window = {
        "pattern": [8, 8, 8, -1],
        "force_full_attention_on_first_layer": first,
        "force_full_attention_on_last_layer": last,
    }
    config = from_olmo_core(model_data(block({"sliding_window": window}), n_layers=layers))
    assert config.family == "olmo3"
    return tuple(config.window_of(layer) for layer in range(layers))


def test_windows() -> None:
    assert _windows(False, True, 4) == (8, 8, 8, None)
    assert _windows(False, True, 6) == (8, 8, 8, None, 8, None)
    assert _windows(True, True, 6) == (None, 8, 8, 8, None, None)
    assert _windows(True, False, 6) == (None, 8, 8, 8, None, 8)


@pytest.mark.parametrize(
    ("scaling", "wanted"),
    [
        ({"_CLASS_": _SCALING + "PIRoPEScalingConfig", "factor": 4.0}, LinearScaling(factor=4.0)),
        (
            {"_CLASS_": _SCALING + "StepwiseRoPEScalingConfig", "factor": 8.0, "old_context_len": 64},
            Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, old_length=64),
        ),
        (
            {"_CLASS_": _SCALING + "YaRNRoPEScalingConfig", "factor": 8.0, "old_context_len": 64, "beta_fast": 16},
            YarnScaling(factor=8.0, old_length=64, beta_fast=16.0),
        ),
    ],
)
def test_scaled_rope(scaling: dict[str, Any], wanted: object) -> None:
    assert from_olmo_core(model_data(block({"rope": rope(scaling=scaling)}))).rope.scaling == wanted


def _their_yarn(given: dict[str, Any], theta: float, size: int) -> torch.Tensor:
    """Frequencies as ai2-olmo-core 3.0.0 computes them (nn/rope.py, YaRNRoPEScalingConfig.compute_scaled_inv_freq)."""

    def channel(rotations: float) -> float:
        return size * math.log(given["old_context_len"] / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    plain_F = 1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float) / size))
    low = max(math.floor(channel(given["beta_fast"])), 0)
    high = min(math.ceil(channel(given["beta_slow"])), len(plain_F) - 1)
    ramp_F = ((torch.arange(len(plain_F), dtype=torch.float32) - low) / max(high - low, 1e-3)).clamp(0, 1)
    factor: float = given["factor"]
    return plain_F / factor * ramp_F + plain_F * (1 - ramp_F)


@pytest.mark.parametrize("theta", [2, 100, 500_000])
@pytest.mark.parametrize("old_length", [1, 64, 2048, 1 << 20])
@pytest.mark.parametrize("partial", [1.0, 0.5])
def test_yarn_is_theirs_wherever_its_ramp_lies(theta: int, old_length: int, partial: float) -> None:
    """OLMo-core ends the ramp at the last pair of channels, transformers and we at the last channel."""
    for factor, fast, slow, head_dim in itertools.product((1.0, 8.0), (1, 32, 64), (1, 4, 40), (4, 12, 32)):
        given = {"factor": factor, "old_context_len": old_length, "beta_fast": fast, "beta_slow": slow}
        their_rope = rope(
            theta=theta, partial_rotary_factor=partial, scaling={"_CLASS_": _SCALING + "YaRNRoPEScalingConfig", **given}
        )
        config = from_olmo_core(model_data(block({"head_dim": head_dim, "rope": their_rope})))
        wanted_F = _their_yarn(given, theta, int(head_dim * partial))
        torch.testing.assert_close(frequencies(config.rope, head_dim)[0], wanted_F, rtol=2e-6, atol=0)
        if partial == 1.0:
            assert from_hf(to_hf(config)).rope == config.rope


@pytest.mark.parametrize("wrong", [{"high_freq_proportion": 0.0}, {"low_freq_proportion": 1.0}, {"factor": -2.0}])
def test_scaling_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    scaling = {"_CLASS_": _SCALING + "StepwiseRoPEScalingConfig", **wrong}
    with pytest.raises(SpecError):
        from_olmo_core(model_data(block({"rope": rope(scaling=scaling)})))


def test_a_new_base_is_no_scaling() -> None:
    scaling = {"_CLASS_": _SCALING + "ABFRoPEScalingConfig", "new_theta": 8_000_000}
    assert from_olmo_core(model_data(block({"rope": rope(scaling=scaling)}))).rope == RopeConfig(theta=8e6)


def test_scaling_of_layers_that_see_all() -> None:
    window = {"pattern": [8, 8, 8, -1], "force_full_attention_on_first_layer": False}
    scaled = rope(scaling={"_CLASS_": _SCALING + "YaRNRoPEScalingConfig", "factor": 8.0, "old_context_len": 64})
    model = model_data(
        block({"sliding_window": window}), block_overrides={"3": block({"sliding_window": window, "rope": scaled})}
    )
    config = from_olmo_core(model)
    assert config.rope.scaling == YarnScaling(factor=8.0, old_length=64)
    assert config.window_rope == RopeConfig(theta=500_000.0)
    assert config.rope_of(0) == RopeConfig(theta=500_000.0)


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        (model_data(block({"clip_qkv": 8.0})), "block.sequence_mixer.clip_qkv: 8.0"),
        (model_data(block({"attention_sinks": True})), "block.sequence_mixer.attention_sinks: True"),
        (model_data(block({"bias": True})), "block.sequence_mixer.bias: True"),
        (model_data(block({"gate": {"granularity": "headwise"}})), "block.sequence_mixer.gate"),
        (model_data(block({"type": "gated_delta_net"})), "block.sequence_mixer.type: gated_delta_net"),
        (model_data(block(name="normalized")), "block.name: normalized"),
        (model_data(block(feed_forward_moe={"num_experts": 4})), "block.feed_forward_moe"),
        (model_data(block(layer_norm={"name": "default", "eps": 1e-6})), "block.layer_norm.name: default"),
        (model_data(block(layer_norm={"name": "rms", "eps": 1e-5})), "layer_norm.eps: [1e-06, 1e-05]"),
        (model_data(block({"rope": rope(no_global_rope=True)})), "rope.no_global_rope: True"),
        (model_data(block({"rope": rope(scaling={"factor": 2.0})})), "rope.scaling: {'factor': 2.0}"),
        (model_data(block(), name="normalized"), "name: normalized"),
        (model_data(block_overrides={"1": block({"n_heads": 8})}), "block_overrides: layers that differ"),
        (
            model_data(block({"sliding_window": {"pattern": [8, 16, -1]}}), n_layers=6),
            "sliding_window.pattern: [8, 16]",
        ),
    ],
)
def test_what_we_do_not_have_is_refused_by_name(model: dict[str, Any], setting: str) -> None:
    with pytest.raises(SpecError) as raised:
        from_olmo_core({"model": model}, source="step1/config.json")
    assert setting in raised.value.message
    assert raised.value.code == "unsupported-architecture"
    assert str(raised.value.place) == "step1/config.json"
