"""Generation: the cache changes nothing, padding changes nothing, and what is drawn is drawn from where it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.model import tiny
from tests.train.model.test_parity import FAMILIES, pair
from windlass.train.errors import TrainingError
from windlass.train.generation.generate import generate, keep_likely
from windlass.train.model.cache import KVCache
from windlass.train.model.config import MoEConfig
from windlass.train.model.decoder import Decoder

MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "windows": {"attention": tiny.attention(window=3, window_pattern=(True, False))},
    "window-of-one": {"attention": tiny.attention(window=1)},
    "capped": {"attention": tiny.attention(soft_cap=2.0, qk_norm="head"), "is_tied": True},
    "experts": {"moe": MoEConfig(num_experts=4, hidden=8)},
}


def without_cache(model: Decoder, tokens_BT: torch.Tensor, num_new: int) -> list[list[int]]:
    start = tokens_BT.shape[1]
    for _ in range(num_new):
        with torch.no_grad():
            logits_BTV = model(tokens_BT)
        tokens_BT = torch.cat((tokens_BT, logits_BTV[:, -1:].argmax(dim=-1)), dim=1)
    made: list[list[int]] = tokens_BT[:, start:].tolist()
    return made


@pytest.mark.parametrize("name", MODELS)
def test_a_cache_changes_nothing(name: str) -> None:
    model = tiny.decoder(**MODELS[name])
    assert generate(model, tiny.tokens(2, 7), max_new_tokens=12) == without_cache(model, tiny.tokens(2, 7), 12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("parts", [(12,), (1,) * 12, (5, 4, 3), (2, 1, 9)], ids=str)
def test_logits_with_a_cache_are_those_without(name: str, parts: tuple[int, ...]) -> None:
    model, tokens_BT = tiny.decoder(**MODELS[name]), tiny.tokens(2, 12)
    cache = KVCache(model.config)
    with torch.no_grad():
        whole = model(tokens_BT)
        made = torch.cat([model(part_BT, cache=cache) for part_BT in tokens_BT.split(parts, dim=1)], dim=1)
    assert cache.length == 12
    torch.testing.assert_close(made, whole, rtol=1e-4, atol=1e-4)


def test_documents_are_known_of_all_tokens_or_of_none() -> None:
    model, tokens_BT = tiny.decoder(), tiny.tokens(2, 4)
    cache = KVCache(model.config)
    model(tokens_BT, cache=cache)
    with pytest.raises(ValueError, match="only some of the tokens after 4"):
        model(tokens_BT, torch.zeros_like(tokens_BT), cache=cache)


@pytest.mark.parametrize("name", MODELS)
def test_prompts_of_other_lengths_change_nothing(name: str) -> None:
    model = tiny.decoder(**MODELS[name])
    prompts = [tiny.tokens(1, length, seed=length)[0].tolist() for length in (9, 1, 4)]
    together = generate(model, prompts, max_new_tokens=8)
    assert together == [generate(model, [prompt], max_new_tokens=8)[0] for prompt in prompts]


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    ours, theirs = pair(name, tmp_path)
    tokens_BT = tiny.tokens(2, 9)
    made_BT = theirs.generate(
        tokens_BT, attention_mask=torch.ones_like(tokens_BT), max_new_tokens=16, do_sample=False, eos_token_id=None
    )
    assert generate(ours, tokens_BT, max_new_tokens=16) == made_BT[:, 9:].tolist()


def test_the_end_of_a_text_is_its_last_token() -> None:
    model, tokens_BT = tiny.decoder(), tiny.tokens(2, 7)
    free = generate(model, tokens_BT, max_new_tokens=12)
    eos = free[0][3]
    ended = generate(model, tokens_BT, max_new_tokens=12, eos=eos)
    for whole, cut in zip(free, ended, strict=True):
        assert cut == (whole[: whole.index(eos) + 1] if eos in whole else whole)
    assert len(ended[0]) <= 4


def test_drawing_follows_the_seed_and_not_the_batch() -> None:
    model, prompts = tiny.decoder(), tiny.tokens(3, 5).tolist()
    drawn = generate(model, prompts, max_new_tokens=10, temperature=1.5, seed=1)
    assert drawn == generate(model, prompts, max_new_tokens=10, temperature=1.5, seed=1)
    assert drawn[:1] == generate(model, prompts[:1], max_new_tokens=10, temperature=1.5, seed=1)
    assert drawn != generate(model, prompts, max_new_tokens=10, temperature=1.5, seed=2)
    assert drawn != generate(model, prompts, max_new_tokens=10, temperature=1.5, seed=10**30)
    assert generate(model, prompts, max_new_tokens=6, temperature=1.5, top_k=1) == generate(
        model, prompts, max_new_tokens=6
    )


def test_only_likely_tokens_stay() -> None:
    logits_BV = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert keep_likely(logits_BV, 2, None)[0].tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert keep_likely(logits_BV, None, 0.65)[0].tolist() == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert keep_likely(logits_BV, None, 0.75)[0].tolist() == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0])
    assert keep_likely(logits_BV, None, 0.0)[0].tolist() == [1, 0, 0, 0]
    assert keep_likely(logits_BV, 9, 1.0)[0].tolist() == pytest.approx([0.4, 0.3, 0.2, 0.1])


def test_no_new_tokens_is_an_answer() -> None:
    assert generate(tiny.decoder(), [[1, 2]], max_new_tokens=0) == [[]]
    assert generate(tiny.decoder(), [], max_new_tokens=4) == []


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([[1], []], "prompt 1 is empty"),
        ([[1, 61]], "prompt 0 has token 61; the vocabulary has 61"),
        ([[-1]], "prompt 0 has token -1; the vocabulary has 61"),
    ],
)
def test_a_prompt_that_cannot_be_read(prompts: list[list[int]], message: str) -> None:
    with pytest.raises(TrainingError) as caught:
        generate(tiny.decoder(), prompts, max_new_tokens=1)
    assert (caught.value.message, caught.value.code) == (message, "invalid-value")
