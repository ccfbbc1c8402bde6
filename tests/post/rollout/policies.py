"""Policies that take a millisecond, engines around them, and work for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.train.model import tiny
from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.post.rollout.engine import RolloutEngine
from windlass.post.rollout.types import Sample, SampleId, SampleRequest, Sampling
from windlass.train.model.config import LinearScaling, Llama3Scaling, MoEConfig, RopeConfig, YarnScaling
from windlass.train.model.decoder import Decoder

__all__ = ["MODELS", "embedded", "finish", "group", "prompt", "work"]

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "heads": {"attention": tiny.attention(num_kv_heads=1)},
    "windows": {"attention": tiny.attention(window=3, window_pattern=(True, False))},
    "window-of-one": {"attention": tiny.attention(window=1)},
    "window-rope": {
        "num_layers": 4,
        "attention": tiny.attention(window=5, window_pattern=(True, True, True, False)),
        "rope": RopeConfig(theta=500_000.0, scaling=YarnScaling(factor=8, old_length=256, attention_factor=1.2)),
        "window_rope": RopeConfig(theta=500_000.0),
    },
    "olmo": {"norm": "reordered", "attention": tiny.attention(num_kv_heads=4, qk_norm="full")},
    "capped-tied": {
        "attention": tiny.attention(soft_cap=2.0, qk_norm="head"),
        "is_tied": True,
        "logit_soft_cap": 3.0,
        "embed_scale": 2.0,
    },
    "llama3": {"rope": RopeConfig(theta=500_000.0, scaling=Llama3Scaling(old_length=16))},
    "linear-partial": {"rope": RopeConfig(scaling=LinearScaling(factor=4), partial=0.5)},
    "no-rope": {"rope_pattern": (True, False)},
    "experts": {"moe": MoEConfig(num_experts=4, hidden=8)},
}


def embedded(model: Decoder | None = None, **changes: Any) -> EmbeddedEngine:
    """An engine with the weights of a model."""
    model = model if model is not None else tiny.decoder()
    settings: dict[str, Any] = {"num_slots": 4, "max_length": 64, "prefill_tokens": 32, "version": 1}
    return EmbeddedEngine(model.config, dict(model.named_parameters()), **{**settings, **changes})


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    """Random tokens."""
    return tuple(tiny.tokens(1, length, seed=seed)[0].tolist())


def work(group: int, member: int = 0, *, length: int = 5, attempt: int = 0, **sampling: Any) -> SampleRequest:
    """Work with a prompt that is a function of its group."""
    return SampleRequest(
        id=SampleId(group=group, member=member, attempt=attempt),
        prompt_ids=prompt(length, seed=group),
        sampling=Sampling(**{"max_new_tokens": 8, "seed": 5, **sampling}),
    )


def group(number: int, size: int, **settings: Any) -> list[SampleRequest]:
    """Work for all members of a group."""
    return [work(number, member, **settings) for member in range(size)]


def finish(engine: RolloutEngine, works: Sequence[SampleRequest]) -> dict[SampleId, Sample]:
    """Submit work as the engine takes it, and return all samples by id."""
    samples: dict[SampleId, Sample] = {}
    left = list(works)
    while len(samples) < len(works):
        left = left[engine.submit(left) :]
        made = engine.poll(60.0)
        assert made, f"{len(works) - len(samples)} samples never finish"
        samples.update({sample.id: sample for sample in made})
    return samples
