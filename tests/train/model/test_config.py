"""What no single field of a model's configuration can see."""

from __future__ import annotations

from typing import Any

import pytest

from tests.train.model import tiny
from windlass.train.model.config import MoEConfig, RopeConfig

WRONG: list[tuple[dict[str, Any], str, str]] = [
    (
        {"d_model": 30},
        "attention.num_heads",
        "d_model 30 does not divide into 4 heads",
    ),
    (
        {"d_model": 36},
        "attention.num_heads",
        "a head of 9 is odd, and rotary embeddings rotate pairs",
    ),
    (
        {"attention": tiny.attention(num_kv_heads=3)},
        "attention.num_kv_heads",
        "4 query heads do not divide into 3 key and value heads",
    ),
    (
        {"rope": RopeConfig(partial=0.4)},
        "rope.partial",
        "rope.partial 0.4 rotates 3 channels of 8; the number must be even",
    ),
    (
        {"attention": tiny.attention(window_pattern=(True, False))},
        "attention.window_pattern",
        "window_pattern is set without a window",
    ),
    (
        {"window_rope": RopeConfig()},
        "window_rope",
        "window_rope is set without a window",
    ),
    (
        {"attention": tiny.attention(soft_cap=30.0, backend="varlen")},
        "attention.backend",
        "attention backend varlen does not support scores capped at 30.0",
    ),
]


@pytest.mark.parametrize(("changes", "path", "message"), WRONG, ids=[path for _, path, _ in WRONG])
def test_parts_that_do_not_fit_are_named(changes: dict[str, Any], path: str, message: str) -> None:
    assert [finding[:2] for finding in tiny.config(**changes).check()] == [(path, message)]


def test_a_token_takes_no_more_experts_than_there_are() -> None:
    found = list(MoEConfig(num_experts=4, top_k=5, hidden=8).check())
    assert [finding[:2] for finding in found] == [("top_k", "a token takes 5 experts of 4")]


def test_patterns_repeat_over_layers() -> None:
    own = RopeConfig(theta=5.0)
    config = tiny.config(
        attention=tiny.attention(window=3, window_pattern=(True, True, False)),
        rope_pattern=(True, True, True, False),
        window_rope=own,
    )
    assert [config.window_of(layer) for layer in range(4)] == [3, 3, None, 3]
    assert [config.rope_of(layer) for layer in range(5)] == [own, own, config.rope, None, own]
    assert [tiny.config(attention=tiny.attention(window=3)).window_of(layer) for layer in range(2)] == [3, 3]
