"""Sizes as data, and what is counted from them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from tests.train.model import tiny
from windlass.train.model.config import MoEConfig
from windlass.train.model.decoder import Decoder
from windlass.train.model.flops import count_parameters, flops_per_token, kv_bytes_per_token
from windlass.train.model.presets import ALIASES, PRESETS, preset, preset_names

PUBLISHED = {
    # from the models' pages on the Hugging Face hub
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
    "olmo3-7b-64k": 7_298_011_136,
    "olmo3-32b-64k": 32_233_522_176,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "olmoe-1b-7b": 6_919_161_856,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_have_their_published_number_of_weights(name: str) -> None:
    assert count_parameters(preset(name)).total == PUBLISHED[name]


@pytest.mark.parametrize("name", ["llama-1m", "olmo2-1m", "olmo3-1m", "moe-1m", "llama-4m"])
def test_the_decoder_has_as_many_weights_as_are_counted(name: str) -> None:
    model = Decoder(preset(name))
    assert sum(parameter.numel() for parameter in model.parameters()) == count_parameters(preset(name)).total


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "peri"},
        {"is_tied": True},
        {"attention": tiny.attention(bias=True, qk_norm="head")},
        {"attention": tiny.attention(head_dim=12, qk_norm="full")},
        {"moe": MoEConfig(num_experts=4, hidden=8, shared_hidden=16)},
    ],
)
def test_all_parts_are_counted(changes: dict[str, object]) -> None:
    config = tiny.config(**changes)
    assert sum(parameter.numel() for parameter in Decoder(config).parameters()) == count_parameters(config).total


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_no_fault_of_its_own(name: str) -> None:
    assert not list(preset(name).check())


def test_the_name_may_be_written_as_olmo_core_does() -> None:
    assert preset("llama2_271M") == preset("llama2-271m") == preset("llama-271m")
    assert all(target in PRESETS for target in ALIASES.values())
    assert set(preset_names()) == {*PRESETS, *ALIASES}


def test_changes_are_of_the_copy_alone() -> None:
    assert preset("llama-1m", vocab_size=256) == replace(preset("llama-1m"), vocab_size=256)
    assert preset("llama-1m").vocab_size == 4096


def test_an_unknown_name_gets_near_ones() -> None:
    with pytest.raises(ValueError, match=r"^unknown preset `olmo2-8b`; did you mean `olmo2-") as caught:
        preset("olmo2-8b")
    assert "`olmo2-7b`" in str(caught.value)
    with pytest.raises(ValueError, match=r"^unknown preset `gargantua`; such as llama-1m, "):
        preset("gargantua")


def test_olmo3_pretrains_unstretched_and_is_released_stretched() -> None:
    plain, released = preset("olmo3-7b"), preset("olmo3-7b-64k")
    assert [plain.window_of(layer) for layer in range(5)] == [4096, 4096, 4096, None, 4096]
    assert plain.rope_of(3) == plain.rope_of(0) == released.rope_of(0)
    full = released.rope_of(3)
    assert full is not None
    assert full.scaling is not None


def test_flops_are_six_for_each_weight_in_a_product_and_attention() -> None:
    config = tiny.config()
    counts = count_parameters(config)
    products = counts.total - config.vocab_size * config.d_model
    assert flops_per_token(config, 10) == 6 * products + 12 * 2 * 32 * 10
    windowed = tiny.config(attention=tiny.attention(window=4, window_pattern=(True, False)))
    assert flops_per_token(windowed, 10) == 6 * products + 12 * 32 * (4 + 10)
    assert flops_per_token(windowed, 3) == flops_per_token(config, 3)


def test_experts_that_are_not_chosen_cost_no_flops() -> None:
    few = tiny.config(moe=MoEConfig(num_experts=4, top_k=2, hidden=8))
    many = tiny.config(moe=MoEConfig(num_experts=8, top_k=2, hidden=8))
    router = 4 * 32 * 2
    assert count_parameters(many).active == count_parameters(few).active + router
    assert count_parameters(many).total == count_parameters(few).total + router + 4 * 3 * 32 * 8 * 2
    assert flops_per_token(many, 8) == flops_per_token(few, 8) + 6 * router


def test_a_token_in_the_cache_takes_keys_and_values_of_all_layers() -> None:
    assert kv_bytes_per_token(preset("llama3-8b")) == 2 * 32 * 8 * 128 * 2
    assert kv_bytes_per_token(preset("llama2-7b"), 4) == 2 * 32 * 4096 * 4


def test_sizes_and_counts_need_no_torch() -> None:
    code = (
        "import sys; from windlass.train import count_parameters, flops_per_token, preset; "
        "flops_per_token(preset('olmo2-7b'), 4096); sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
