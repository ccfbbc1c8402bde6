"""config.json both ways: every preset, both generations of transformers, and what is refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from tests.train.hf.models import MODELS
from windlass.core.errors import SpecError
from windlass.train.hf.config import from_hf, read_config, to_hf
from windlass.train.model.config import (
    AttentionConfig,
    LinearScaling,
    ModelConfig,
    MoEConfig,
    RopeConfig,
    YarnScaling,
)
from windlass.train.model.presets import PRESETS, preset

LLAMA = MODELS["llama"]


def plain(config: ModelConfig) -> ModelConfig:
    """With what follows from other settings, or is of training alone, left out: as an import gives it."""
    attention = config.attention
    kv_heads = None if attention.num_kv_heads == attention.num_heads else attention.num_kv_heads
    is_usual = attention.head_dim is None or attention.head_dim * attention.num_heads == config.d_model
    return dataclasses.replace(
        config,
        moe=None if config.moe is None else dataclasses.replace(config.moe, router_z_loss=0.0),
        hidden=config.hidden if config.moe is None else config.moe.hidden,
        attention=dataclasses.replace(
            attention, num_kv_heads=kv_heads, head_dim=None if is_usual else attention.head_dim, backend="auto"
        ),
    )


# An expert for every token beside reordered norms: nothing in transformers has both.
_OURS_ALONE = ("moe-small",)


@pytest.mark.parametrize("name", [*MODELS, *(name for name in PRESETS if name not in _OURS_ALONE)])
def test_configurations_survive_both_ways(name: str, tmp_path: Path) -> None:
    config = MODELS[name] if name in MODELS else preset(name)
    data = json.loads(json.dumps(to_hf(config)))
    assert plain(from_hf(data)) == plain(config)
    (tmp_path / "config.json").write_text(json.dumps(data))
    AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "theirs")
    assert plain(read_config(tmp_path / "theirs")) == plain(config)


@pytest.mark.parametrize("name", MODELS)
def test_the_words_of_transformers_4_say_the_same(name: str) -> None:
    data = to_hf(MODELS[name])
    if "rope_scaling" in data:
        del data["rope_parameters"]
        assert plain(from_hf(data)) == plain(MODELS[name])


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("llama-tied", "llama"),
        ("mistral", "mistral"),
        ("qwen2", "qwen2"),
        ("qwen3-windows", "qwen3"),
        ("olmo2", "olmo2"),
        ("olmo3", "olmo3"),
        ("qwen3-moe", "qwen3_moe"),
        ("olmoe", "olmoe"),
        ("mixtral", "mixtral"),
        ("flex-olmo", "flex_olmo"),
    ],
)
def test_the_architecture_follows_from_the_settings(name: str, model_type: str) -> None:
    for family in (MODELS[name].family, "custom"):
        config = dataclasses.replace(MODELS[name], family=family)
        assert to_hf(config)["model_type"] == model_type


def test_a_preset_of_ours_alone_says_why() -> None:
    with pytest.raises(SpecError, match=r"flex_olmo is the nearest, without `moe\.shared_hidden 1536`"):
        to_hf(preset("moe-small"))


def test_an_olmo3_without_windows_stays_one() -> None:
    config = dataclasses.replace(MODELS["olmo2"], family="olmo3")
    assert to_hf(config)["model_type"] == "olmo3"
    assert from_hf(to_hf(config)) == config


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"norm": "peri"}, "`norm peri`"),
        ({"logit_soft_cap": 30.0}, "`logit_soft_cap 30.0`"),
        ({"embed_scale": 2.0}, "`embed_scale 2.0`"),
        ({"rope": RopeConfig(partial=0.5)}, "`rope.partial 0.5`"),
        ({"rope_pattern": (True, False)}, "`rope_pattern [True, False]`"),
        ({"attention": AttentionConfig(num_heads=4, scale=0.5)}, "`attention.scale 0.5`"),
        ({"attention": AttentionConfig(num_heads=4, soft_cap=50.0)}, "`attention.soft_cap 50.0`"),
        (
            {"attention": AttentionConfig(num_heads=4, window=8, window_pattern=(True, False))},
            "`attention.window 8`",
        ),
        ({"moe": MoEConfig(num_experts=4, hidden=16, normalize=False)}, "`attention.qk_norm none`"),
        ({"moe": MoEConfig(num_experts=4, hidden=16, gate="sigmoid")}, "`moe.gate sigmoid`"),
        ({"moe": MoEConfig(num_experts=4, hidden=16, shared_hidden=8)}, "`moe.shared_hidden 8`"),
    ],
)
def test_what_no_architecture_has_is_refused_by_name(changes: dict[str, Any], setting: str) -> None:
    with pytest.raises(SpecError) as raised:
        to_hf(dataclasses.replace(LLAMA, **changes))
    assert setting in raised.value.message
    assert raised.value.code == "unsupported-architecture"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "`attention_bias: true` is not supported"),
        ({"mlp_bias": True}, "`mlp_bias: true` is not supported"),
        ({"hidden_act": "gelu"}, '`hidden_act: "gelu"` is not supported'),
        ({"quantization_config": {"bits": 4}}, '`quantization_config: {"bits": 4}` is not supported'),
        ({"no_rope_layers": [1, 0]}, "unknown setting `no_rope_layers: [1, 0]`"),
        ({"hidden_size": "wide"}, "`hidden_size` is 'wide'; expected an integer from 1"),
        ({"num_hidden_layers": None}, "`num_hidden_layers` is None; expected an integer from 1"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "`longrope` is not supported"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "rope_theta": 1e4}},
            "`mscale` is not supported",
        ),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "`linear` has no `factor`"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "`dynamic` is not supported"),
        ({"rope_parameters": {"rope_type": "proportional", "factor": 2.0}}, "`proportional` is not supported"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "`llama3` has no `low_freq_factor`"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "4x"}}, "`factor: '4x'` of the rotary embedding"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "rope.scaling.factor"),
        ({"rope_parameters": 3}, "cannot read the rotary embedding"),
        ({"rms_norm_eps": -1.0}, "norm_eps"),
    ],
)
def test_settings_that_we_do_not_have_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as raised:
        from_hf({**to_hf(LLAMA), **changes}, source="model/config.json")
    assert message in str(raised.value)
    assert "config.json" in str(raised.value.problems[0].place)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0, "truncate": False}}},
        {"rope_theta": 300.0},
    ],
    ids=["scaling", "flat", "unknown", "theta"],
)
def test_an_olmo3_that_transformers_reads_in_two_ways_is_refused(changes: dict[str, Any]) -> None:
    """transformers 5 ignores flat parameters and `truncate`, and takes 500,000 for windows whatever `rope_theta` says."""
    data = to_hf(MODELS["olmo3"])
    del data["rope_parameters"], data["rope_theta"], data["rope_scaling"]
    if changes.keys() == {"rope_scaling"}:
        config = from_hf({**data, **changes})
        assert (config.rope.theta, config.window_rope) == (500_000.0, RopeConfig(theta=500_000.0))
        yarn = {**changes["rope_scaling"], "truncate": False}
        changes = {"rope_scaling": yarn}
    with pytest.raises(SpecError) as raised:
        from_hf({**data, **changes})
    assert raised.value.code == "unsupported-architecture"


def test_an_olmo3_cannot_say_that_its_ramp_has_loose_ends() -> None:
    loose = YarnScaling(factor=8, old_length=32, truncate=False)
    with pytest.raises(SpecError, match=r"`rope\.scaling\.truncate false`"):
        to_hf(dataclasses.replace(MODELS["olmo3"], rope=RopeConfig(scaling=loose)))


def test_of_two_rotary_embeddings_transformers_takes_the_one_with_the_old_name() -> None:
    """Equal to transformers 5.23; its default of theta is the architecture's own."""
    new = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "rope_theta": 300.0}
    for name in ("llama", "mixtral"):
        data = to_hf(MODELS[name])
        del data["rope_theta"]
        data |= {"rope_parameters": new, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
        theirs = AutoConfig.for_model(**json.loads(json.dumps(data))).rope_parameters
        ours = from_hf(data).rope
        assert (ours.theta, ours.scaling) == (theirs["rope_theta"], LinearScaling(factor=theirs["factor"]))


def test_a_factor_of_null_is_the_ratio_of_the_lengths() -> None:
    given = {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16, "rope_theta": 1e4}
    assert from_hf({**to_hf(LLAMA), "rope_scaling": given}).rope.scaling == YarnScaling(factor=4.0, old_length=16)


def test_no_setting_of_ours_is_forgotten() -> None:
    """A new field is either written into config.json or refused there; then it may be added here."""
    model = {
        *(
            "kind",
            "d_model",
            "num_layers",
            "vocab_size",
            "hidden",
            "attention",
            "max_length",
            "norm",
            "norm_eps",
            "rope",
        ),
        *(
            "window_rope",
            "rope_pattern",
            "moe",
            "head",
            "is_tied",
            "embed_scale",
            "logit_soft_cap",
            "init_std",
            "family",
        ),
    }
    attention = {
        *("num_heads", "num_kv_heads", "head_dim", "bias", "qk_norm", "window", "window_pattern", "scale"),
        *("soft_cap", "backend"),
    }
    experts = {
        *("num_experts", "top_k", "hidden", "gate", "normalize", "balance_loss", "router_z_loss", "shared_hidden"),
    }
    for kind, known in ((ModelConfig, model), (AttentionConfig, attention), (MoEConfig, experts)):
        assert {field.name for field in dataclasses.fields(kind)} == known
    assert {field.name for field in dataclasses.fields(RopeConfig)} == {"theta", "scaling", "partial"}


def test_all_problems_come_together() -> None:
    with pytest.raises(SpecError) as raised:
        from_hf({**to_hf(LLAMA), "mlp_bias": True, "clip_qkv": 8.0, "vocab_size": 0})
    assert len(raised.value.problems) == 3


def test_other_architectures_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(SpecError) as raised:
        from_hf({"model_type": "mamba"})
    assert raised.value.message == "unsupported model_type mamba"
    assert raised.value.code == "unsupported-architecture"
    assert "olmo3" in raised.value.hint
    with pytest.raises(SpecError, match="has no `model_type`"):
        from_hf({})


def test_folders_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"has no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(SpecError, match="is not a mapping"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SpecError, match="cannot read"):
        read_config(tmp_path)


def test_what_published_files_leave_out() -> None:
    """The first Llama's file knows no key and value heads and no bias; Qwen's windows are told by number."""
    llama = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "vocab_size": 100,
        "rms_norm_eps": 1e-6,
        "torch_dtype": "float16",
        "pad_token_id": 0,
    }
    config = from_hf(llama)
    assert (config.attention.num_kv_heads, config.max_length, config.rope) == (None, 2048, RopeConfig())
    qwen = {
        **llama,
        "model_type": "qwen2",
        "use_sliding_window": True,
        "sliding_window": 8,
        "max_window_layers": 1,
        "num_key_value_heads": 2,
        "rope_theta": 1e6,
    }
    attention = from_hf(qwen).attention
    assert (attention.window, attention.window_pattern, attention.bias) == (8, (False, True), True)
    assert from_hf({**qwen, "use_sliding_window": False}).attention.window is None
    yarn = {**qwen, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}
    assert from_hf(yarn).rope == RopeConfig(theta=1e6, scaling=YarnScaling(factor=4.0, old_length=32))
