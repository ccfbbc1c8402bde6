"""Rotary embeddings against transformers' own frequencies, and by their definition."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from windlass.train.model.config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from windlass.train.model.rope import RopeTable, frequencies, rotate

CPU = torch.device("cpu")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "linear": (LinearScaling(factor=4.0), {"rope_type": "linear", "factor": 4.0}),
    "llama3": (Llama3Scaling(), LLAMA3),
    "yarn": (YarnScaling(factor=8.0, old_length=8192), YARN),
    "yarn-olmo3": (
        YarnScaling(factor=8.0, old_length=8192, attention_factor=1.2079441541679836),
        {**YARN, "attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0},
    ),
    "yarn-short": (
        YarnScaling(factor=16.0, old_length=64, beta_fast=8.0, beta_slow=2.0),
        {**YARN, "factor": 16.0, "original_max_position_embeddings": 64, "beta_fast": 8.0, "beta_slow": 2.0},
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("head_dim", [32, 128])
def test_stretched_frequencies_are_those_of_transformers(name: str, head_dim: int) -> None:
    scaling, parameters = CASES[name]
    assert_equal(scaling, parameters, 500_000.0, head_dim)


@pytest.mark.parametrize("theta", [2.0, 100.0, 500_000.0])
@pytest.mark.parametrize("old_length", [1, 64, 2048, 1 << 20])
@pytest.mark.parametrize("head_dim", [4, 12, 32])
def test_yarn_is_that_of_transformers_wherever_its_ramp_lies(theta: float, old_length: int, head_dim: int) -> None:
    for factor, fast, slow, truncate in itertools.product((1.0, 8.0), (1.0, 32.0), (0.5, 1.0, 40.0), (True, False)):
        given = {"factor": factor, "original_max_position_embeddings": old_length, "truncate": truncate}
        parameters = {"rope_type": "yarn", **given, "beta_fast": fast, "beta_slow": slow}
        ours = YarnScaling(factor=factor, old_length=old_length, beta_fast=fast, beta_slow=slow, truncate=truncate)
        assert_equal(ours, parameters, theta, head_dim)


@pytest.mark.parametrize("old_length", [1, 64, 8192])
def test_llama3_is_that_of_transformers_even_with_factors_in_the_wrong_order(old_length: int) -> None:
    for theta, low, high in itertools.product((2.0, 5e5), (0.5, 1.0, 8.0), (0.6, 4.0)):
        parameters = {**LLAMA3, "low_freq_factor": low, "high_freq_factor": high}
        ours = Llama3Scaling(low_freq_factor=low, high_freq_factor=high, old_length=old_length)
        assert_equal(ours, {**parameters, "original_max_position_embeddings": old_length}, theta, 12)


def assert_equal(scaling: Any, parameters: dict[str, Any], theta: float, head_dim: int) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        max_position_embeddings=65_536,
        rope_parameters={"rope_theta": theta, **parameters},
    )
    theirs_F, their_factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, CPU)
    ours_F, our_factor = frequencies(RopeConfig(theta=theta, scaling=scaling), head_dim)
    assert torch.equal(ours_F, theirs_F), parameters
    assert our_factor == pytest.approx(their_factor, rel=1e-12)


def test_plain_frequencies_are_powers_of_theta() -> None:
    made_F, factor = frequencies(RopeConfig(theta=100.0), 4)
    assert made_F.tolist() == pytest.approx([1.0, 0.1])
    assert factor == 1.0


def test_a_rotation_turns_pairs_by_position_times_frequency() -> None:
    rotation = RopeTable(RopeConfig(theta=100.0), 4).take(0, 8, CPU)
    x = torch.tensor([1.0, 0.0, 0.0, 2.0]).expand(1, 1, 8, 4)
    turned = rotate(x, rotation)[0, 0, 5].tolist()
    assert turned == pytest.approx([math.cos(5), -2 * math.sin(0.5), math.sin(5), 2 * math.cos(0.5)], rel=1e-5)


def test_scores_depend_on_distance_alone() -> None:
    table = RopeTable(RopeConfig(), 8)
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    near = rotate(q, table.take(7, 1, CPU)) @ rotate(k, table.take(3, 1, CPU)).transpose(-1, -2)
    far = rotate(q, table.take(107, 1, CPU)) @ rotate(k, table.take(103, 1, CPU)).transpose(-1, -2)
    assert near.item() == pytest.approx(far.item(), rel=1e-4)


def test_a_part_of_each_head_may_stay_as_it_is() -> None:
    rotation = RopeTable(RopeConfig(partial=0.5), 8).take(0, 4, CPU)
    x = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    turned = rotate(x, rotation)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    assert torch.equal(turned[..., :4], rotate(x[..., :4], RopeTable(RopeConfig(), 4).take(0, 4, CPU)))


def test_a_table_is_made_once_and_grows() -> None:
    table = RopeTable(RopeConfig(), 8)
    long = table.take(0, 16, CPU)
    assert table.take(0, 16, CPU) is long
    assert torch.equal(table.take(5, 3, CPU).cos_TR, long.cos_TR[5:8])
    assert table.take(0, 32, CPU).cos_TR.shape[0] == 32
    positions_T = torch.tensor([9, 2, 2])
    assert torch.equal(table.take(0, 3, CPU, positions_T).sin_TR, long.sin_TR[[9, 2, 2]])


def test_low_precision_is_turned_in_float32() -> None:
    rotation = RopeTable(RopeConfig(), 8).take(0, 64, CPU)
    x = torch.randn(1, 1, 64, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(rotate(x, rotation), rotate(x.float(), rotation).bfloat16())


def test_rows_have_positions_of_their_own() -> None:
    table = RopeTable(RopeConfig(), 8)
    positions_BT = torch.tensor([[3, 4, 5], [0, 1, 2]])
    rows = table.take_rows(positions_BT, 16)
    x_BHTK = torch.randn(2, 4, 3, 8, generator=torch.Generator().manual_seed(0))
    turned = rotate(x_BHTK, rows)
    for row, start in enumerate((3, 0)):
        assert torch.equal(turned[row], rotate(x_BHTK[row : row + 1], table.take(start, 3, torch.device("cpu")))[0])
