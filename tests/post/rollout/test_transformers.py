"""The embedded engine and transformers agree on tokens, log-probabilities and scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.post.rollout.policies import embedded, finish, group, work
from tests.train.model import tiny
from tests.train.model.test_parity import FAMILIES
from windlass.post.rollout.engine import EngineError
from windlass.post.rollout.transformers import TransformersEngine
from windlass.post.rollout.types import ScoreRequest
from windlass.train.model.decoder import Decoder


def theirs(model: Decoder, **changes: Any) -> TransformersEngine:
    weights = dict(model.named_parameters())
    return TransformersEngine(model.config, weights, **{"num_slots": 8, "max_length": 64, "version": 1, **changes})


@pytest.mark.parametrize("name", FAMILIES)
def test_both_choose_the_same_tokens_with_the_same_probabilities(name: str) -> None:
    model = tiny.decoder(**FAMILIES[name])
    works = [work(g, length=length, temperature=0.0, max_new_tokens=12) for g, length in enumerate((9, 1, 4, 17))]
    ours, others = finish(embedded(model), works), finish(theirs(model), works)
    for item in works:
        mine, other = ours[item.id], others[item.id]
        assert (mine.ids, mine.finish, mine.spans[0].version) == (other.ids, other.finish, other.spans[0].version)
        assert mine.logp == pytest.approx(other.logp, abs=1e-5)
        assert mine.raw_logp == pytest.approx(other.raw_logp, abs=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.6}, {"temperature": 1.4, "top_k": 9, "top_p": 0.8}],
    ids=str,
)
def test_our_scores_explain_their_samples(settings: dict[str, Any]) -> None:
    model = tiny.decoder(family="llama")
    engine, works = theirs(model), group(0, 6, **settings)
    samples = finish(engine, works)
    requests = [ScoreRequest(ids=item.prompt_ids + samples[item.id].ids, start=5) for item in works]
    for item, scores, own in zip(works, embedded(model).score(requests), engine.score(requests), strict=True):
        assert samples[item.id].raw_logp == pytest.approx(scores, abs=1e-5)
        assert own == pytest.approx(scores, abs=1e-5)
        if not settings:
            assert samples[item.id].logp == samples[item.id].raw_logp
        elif "top_k" in settings or "top_p" in settings:
            assert sum(samples[item.id].logp) > sum(scores)


def test_a_stop_text_cuts_a_sample() -> None:
    model = tiny.decoder(family="llama")
    pieces = [chr(ord("a") + token % 26) for token in range(61)]

    def decode(ids: Sequence[int]) -> str:
        return "".join(pieces[token] for token in ids)

    free = finish(theirs(model), [work(0, temperature=0.0, max_new_tokens=12)])[work(0).id]
    text = decode(free.ids)[3:5]
    cut = finish(theirs(model, decode=decode), [work(0, temperature=0.0, max_new_tokens=12, stop_texts=(text,))])
    sample = cut[work(0).id]
    assert sample.ids == free.ids[: decode(free.ids).index(text) + 2]
    assert sample.finish == "stop"


def test_weights_of_another_model_are_refused() -> None:
    model = tiny.decoder(family="llama")
    engine = theirs(model)
    with pytest.raises(EngineError, match="of another model"):
        engine.load({"norm.weight": torch.zeros(32)}, 2)
    assert engine.version() == 1
