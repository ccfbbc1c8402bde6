"""Sampling: the distribution is that of generate, the numbers are counted, and rows do not touch each other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from windlass.post.rollout.sampling import SamplingRows, choose, processed, uniforms
from windlass.post.rollout.streams import stream_key, uniform
from windlass.post.rollout.types import SampleId, Sampling
from windlass.train.generation.generate import keep_likely

CPU = torch.device("cpu")
SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 0.0},
    {"top_k": 5},
    {"top_p": 0.6},
    {"top_p": 1.0},
    {"temperature": 1.3, "top_k": 7, "top_p": 0.8},
    {"top_k": 1},
    {"top_k": 500},
    {"top_p": 1e-9},
    {"temperature": 0.0, "top_k": 3, "top_p": 0.2},
]


def rows_of(settings: list[dict[str, Any]], vocab_size: int) -> SamplingRows:
    return SamplingRows.of([Sampling(max_new_tokens=1, **changes) for changes in settings], vocab_size, CPU)


def logits(rows: int, vocab_size: int = 50) -> torch.Tensor:
    return 3 * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("changes", SETTINGS, ids=str)
def test_the_distribution_is_that_of_keep_likely(changes: dict[str, Any]) -> None:
    if changes.get("temperature") == 0:
        changes = {}
    logits_BV = logits(20)
    mine_BV = processed(logits_BV, rows_of([changes] * 20, 50)).exp()
    # keep_likely loses tokens to rounding where all of them are wanted
    top_p = None if changes.get("top_p") == 1.0 else changes.get("top_p")
    theirs_BV = keep_likely(logits_BV / changes.get("temperature", 1.0), changes.get("top_k"), top_p)
    assert torch.equal(mine_BV > 0, theirs_BV > 0)
    torch.testing.assert_close(mine_BV, theirs_BV, rtol=1e-5, atol=1e-7)


def test_ties_with_the_last_likely_token_stay() -> None:
    logits_BV = torch.tensor([[1.0, 2.0, 1.0, 0.0]])
    assert (processed(logits_BV, rows_of([{"top_k": 2}], 4)).exp()[0] > 0).tolist() == [True, True, True, False]


@pytest.mark.parametrize("own", SETTINGS, ids=str)
def test_other_rows_change_no_bit_of_a_row(own: dict[str, Any]) -> None:
    logits_BV, uniforms_B = logits(len(SETTINGS) + 1), torch.linspace(0.05, 0.95, len(SETTINGS) + 1).double()
    among = choose(logits_BV, rows_of([own, *SETTINGS], 50), uniforms_B)
    alone = choose(logits_BV[:1], rows_of([own], 50), uniforms_B[:1])
    equal = choose(logits_BV, rows_of([own] * len(logits_BV), 50), uniforms_B)
    for other in (alone, equal):
        assert torch.equal(among.tokens_B[:1], other.tokens_B[:1])
        assert torch.equal(among.logp_B[:1], other.logp_B[:1])
        assert torch.equal(among.raw_logp_B[:1], other.raw_logp_B[:1])


def test_tokens_come_as_often_as_they_are_likely() -> None:
    shares = torch.tensor([0.5, 0.0, 0.3, 0.2])
    draws = 20_000
    keys_B = torch.tensor([stream_key(3, SampleId(group=number, member=1)) for number in range(draws)])
    uniforms_B = uniforms(keys_B, torch.zeros(draws, dtype=torch.int64))
    chosen = choose(shares.log().expand(draws, -1), rows_of([{}] * draws, 4), uniforms_B)
    counts = chosen.tokens_B.bincount(minlength=4) / draws
    assert counts[1] == 0
    torch.testing.assert_close(counts, shares, rtol=0, atol=4 * math.sqrt(0.25 / draws))
    torch.testing.assert_close(chosen.logp_B, shares.log()[chosen.tokens_B])


def test_a_number_at_either_end_chooses_a_possible_token() -> None:
    logits_BV = torch.tensor([[-math.inf, 0.0, -math.inf, 1.0, -math.inf]]).expand(2, -1)
    chosen = choose(logits_BV, rows_of([{}, {}], 5), torch.tensor([0.0, 1 - 2.0**-52], dtype=torch.float64))
    assert chosen.tokens_B.tolist() == [1, 3]


def test_a_greedy_row_reports_the_unchanged_distribution() -> None:
    logits_BV = logits(2)
    chosen = choose(logits_BV, rows_of([{"temperature": 0.0}, {"temperature": 0.5}], 50), torch.tensor([0.9, 0.9]))
    assert chosen.tokens_B[0] == logits_BV[0].argmax()
    assert chosen.logp_B[0] == chosen.raw_logp_B[0] == logits_BV.log_softmax(-1)[0].max()
    assert chosen.logp_B[1] != chosen.raw_logp_B[1]


def test_tensors_count_as_integers_do() -> None:
    keys = [stream_key(seed, SampleId(group=group, member=2)) for seed in (0, -1, 2**63) for group in range(50)]
    positions = torch.arange(len(keys)) * 1000
    wanted = [uniform(key, position) for key, position in zip(keys, positions.tolist(), strict=True)]
    assert uniforms(torch.tensor(keys), positions).tolist() == wanted
    assert min(wanted) >= 0
    assert max(wanted) < 1


def test_numbers_depend_on_seed_group_member_and_position_alone() -> None:
    sample = SampleId(group=4, member=7)
    key = stream_key(1, sample)
    assert key == stream_key(1, SampleId(group=4, member=7, attempt=3))
    others = {
        stream_key(2, sample),
        stream_key(1, SampleId(group=7, member=4)),
        stream_key(1, SampleId(group=4, member=8)),
    }
    assert len({key, *others}) == 4
    assert len({uniform(key, position) for position in range(1000)}) == 1000


def test_the_numbers_are_the_published_ones() -> None:
    """SplitMix64 from state 1234567, as in the reference implementation's test vector."""
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [uniform(1234567, position) for position in range(3)] == [(value >> 12) * 2.0**-52 for value in wanted]
