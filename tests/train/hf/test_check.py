"""The comparison names the first place that differs."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.train.hf.models import MODELS
from tests.train.hf.test_convert_weights import decoder
from windlass.core.errors import UsageError
from windlass.train.hf.check import compare_layers

TOKENS = torch.arange(24).reshape(2, 12)


def test_equal_models_differ_nowhere() -> None:
    model = decoder(MODELS["olmo2"])
    check = compare_layers(model, copy.deepcopy(model), TOKENS)
    assert check.first is None
    assert str(check) == "equal within 1e-05: logits differ by at most 0"
    places = [point.name for point in check.points]
    assert places[:4] == ["embed", "blocks.0.attention", "blocks.0.ffn", "blocks.0"]
    assert places[-2:] == ["norm", "logits"]


@pytest.mark.parametrize(
    ("name", "weight", "place"),
    [
        ("llama", "embed.weight", "embed"),
        ("llama", "blocks.1.attention.k.weight", "blocks.1.attention"),
        ("qwen3", "blocks.1.attention.q_norm.weight", "blocks.1.attention"),
        ("olmo2", "blocks.0.attention_norm.weight", "blocks.0.ffn"),
        ("olmo2", "blocks.1.ffn_norm.weight", "blocks.1"),
        ("olmo2", "blocks.1.ffn.down.weight", "blocks.1.ffn"),
        ("qwen3-moe", "blocks.0.moe.up", "blocks.0.ffn"),
        ("llama", "norm.weight", "norm"),
        ("llama", "head.weight", "logits"),
    ],
)
def test_one_changed_weight_is_found(name: str, weight: str, place: str) -> None:
    left, right = decoder(MODELS[name]), decoder(MODELS[name])
    with torch.no_grad():
        right.get_parameter(weight).mul_(1.5)
    check = compare_layers(left, right, TOKENS)
    assert check.first is not None
    assert check.first.name == place
    assert check.first.difference > 1e-5
    assert place in str(check)


def test_values_that_are_no_numbers_differ() -> None:
    left, right = decoder(MODELS["llama"]), decoder(MODELS["llama"])
    with torch.no_grad():
        right.get_parameter("blocks.0.ffn.up.weight")[0, 0] = float("nan")
    first = compare_layers(left, right, TOKENS).first
    assert first is not None
    assert (first.name, first.difference) == ("blocks.0.ffn", float("inf"))


def test_models_of_other_sizes_and_makes_are_refused() -> None:
    with pytest.raises(UsageError, match=r"no blocks\.2"):
        compare_layers(decoder(MODELS["llama"]), decoder(MODELS["olmo3"]), TOKENS)
    with pytest.raises(UsageError, match="unknown model class Linear"):
        compare_layers(torch.nn.Linear(2, 2), decoder(MODELS["llama"]), TOKENS)
