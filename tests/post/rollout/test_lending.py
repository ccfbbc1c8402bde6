"""An engine that frees its slots and weights while a learner needs the memory."""

from __future__ import annotations

import gc
from typing import Literal

import pytest

from tests.post.memory import LiveTensors, resident_bytes
from tests.post.rollout.policies import MODELS, embedded, finish, group, work
from tests.post.rollout.test_embedded import facts_of
from tests.train.model import tiny
from windlass.core.errors import UsageError
from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.post.rollout.engine import EngineError
from windlass.post.rollout.types import ScoreRequest


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("what", ["cache", "weights"])
def test_samples_are_the_same_after_memory_was_lent(name: str, what: Literal["cache", "weights"]) -> None:
    model = tiny.decoder(**MODELS[name])
    works = [item for g, length in enumerate((9, 3, 17)) for item in group(g, 3, length=length)]
    wanted = {item: facts_of(sample) for item, sample in finish(embedded(model), works).items()}
    engine = embedded(model)
    for _ in range(2):
        finish(engine, [work(7, length=30, max_new_tokens=30)])
        engine.lend(what)
        engine.take_back()
        engine.load(dict(model.named_parameters()), 1)
        assert {item: facts_of(sample) for item, sample in finish(engine, works).items()} == wanted


def test_lent_memory_is_freed_and_allocated_again() -> None:
    model = tiny.decoder(max_length=4096)
    with LiveTensors() as live:
        engine = embedded(model, num_slots=32, max_length=4096)
        gc.collect()  # what its start left in cycles
        whole, config = live.now(), model.config
        cache = 2 * config.num_layers * 4096 * 32 * config.num_kv_heads * config.head_dim * 4
        weights = sum(each.numel() * 4 for each in model.parameters())
        engine.lend("cache")
        assert live.now() == whole - cache
        engine.lend("weights")
        assert live.now() == whole - cache - weights
        engine.take_back()
        assert live.now() == whole


def test_lent_memory_leaves_the_process() -> None:
    model = tiny.decoder(max_length=32768)
    config = model.config
    cache = 2 * config.num_layers * 32768 * 32 * config.num_kv_heads * config.head_dim * 4
    engine = embedded(model, num_slots=32, max_length=32768)
    gc.collect()
    whole = resident_bytes()
    assert cache > 100 << 20
    engine.lend("cache")
    assert whole - resident_bytes() > 0.95 * cache
    engine.take_back()
    assert resident_bytes() > whole - 0.05 * cache


def test_an_engine_without_its_memory_refuses_to_compute() -> None:
    model = tiny.decoder()
    engine = embedded(model)
    engine.submit([work(0)])
    with pytest.raises(UsageError, match="1 samples in progress"):
        engine.lend("cache")
    engine.cancel([work(0).id])
    engine.poll(0)
    engine.lend("weights")
    engine.lend("cache")  # still both
    request = ScoreRequest(ids=(1, 2))
    for call in (lambda: engine.poll(0), lambda: engine.score([request]), lambda: engine.load({}, 2)):
        with pytest.raises(EngineError):
            call()
    engine.take_back()
    engine.take_back()
    with pytest.raises(EngineError, match="not loaded again") as refused:
        engine.score([request])
    assert refused.value.hint == "call `load`"
    engine.load(dict(model.named_parameters()), 2)
    assert engine.score([request]) == embedded(model).score([request])


def test_slots_alone_need_no_load() -> None:
    model = tiny.decoder()
    engine = embedded(model)
    engine.lend("cache")
    engine.take_back()
    assert (
        finish(engine, group(0, 2)).keys()
        == finish(EmbeddedEngine(model.config, dict(model.named_parameters())), group(0, 2)).keys()
    )
