"""Prompts that are computed once for the answers of a group: the same gradient as one row per answer, and less work."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.post.rollout.policies import MODELS
from tests.train.model import tiny
from windlass.post.control.assembly import BatchAssembly, StreamScorer, rollout_rows
from windlass.post.control.config import RolloutConfig
from windlass.post.control.scoring import ScoredSample
from windlass.post.control.sharing import row_length, shared_members, shared_rows
from windlass.post.objectives.batch import Scores, TokenRows
from windlass.post.objectives.config import AdvantageConfig
from windlass.post.objectives.logprobs import LogProbs, TokenScores
from windlass.post.objectives.policy import PolicyObjective
from windlass.post.objectives.presets import PRESETS
from windlass.post.rollout.types import Sample, SampleId
from windlass.train.batch import IGNORE
from windlass.train.model.attention import attend
from windlass.train.model.decoder import Decoder
from windlass.train.model.masks import branched_blocks, branched_mask

ANSWERS = ((9, (5, 1, 7, 3)), (1, (2, 2)), (4, (6, 3, 4)))
"""Length of each group's prompt and of its members' answers."""


def answers(groups: tuple[tuple[int, tuple[int, ...]], ...] = ANSWERS) -> list[tuple[ScoredSample, float]]:
    generator, found = torch.Generator().manual_seed(0), []

    def ids(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(61, (length,), generator=generator).tolist())

    for group, (prompt_length, lengths) in enumerate(groups):
        prompt = ids(prompt_length)
        for member, length in enumerate(lengths):
            sample = Sample(
                id=SampleId(group=group, member=member),
                ids=ids(length),
                logp=tuple(torch.randn(length, generator=generator).tolist()),
                raw_logp=None,
                spans=(),
                finish="stop",
            )
            reward = float(torch.randn((), generator=generator))
            scored = ScoredSample(sample=sample, prompt_ids=prompt, text="", rewards={}, reward=reward)
            found.append((scored, reward))
    return found


def gradient(model: Decoder, preset: str, parts: list[TokenRows]) -> Tensor:
    """Gradient of all weights, as the train module computes it."""
    objective = PolicyObjective(config=PRESETS[preset].policy)
    weight = sum(objective.weigh(part)[0] for part in parts)
    model.zero_grad()
    for part in parts:
        found = model(part.tokens_BT, part.documents_BT, labels_BT=part.labels_BT, loss=LogProbs(), **part.context())
        assert isinstance(found, TokenScores)
        (objective.sums(part, Scores(logp_BT=found.logp)).losses["policy"] / weight).backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


@pytest.mark.parametrize("preset", ["dapo", "grpo", "gspo"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "experts"])
def test_shared_rows_have_the_gradient_of_single_ones(name: str, dtype: torch.dtype, preset: str) -> None:
    """Whole groups, halves of groups in rows of unequal length, and one microbatch per row."""
    model, own = tiny.decoder(**MODELS[name]).to(dtype), answers()
    wanted = gradient(model, preset, [rollout_rows(own, pad_id=0)])
    assert wanted.any()
    whole = [own[:4], own[4:6], own[6:]]
    halves = [own[:3], own[3:4], own[4:6], own[6:8], own[8:]]
    limit = 1e-9 if dtype == torch.float64 else 1e-5
    for layout in ([whole], [halves], [[row] for row in halves], [whole[:1], halves[2:]]):
        parts = [shared_rows(rows, pad_id=0) for rows in layout]
        error = (gradient(model, preset, parts) - wanted).abs().max() / wanted.abs().max()
        assert float(error) <= limit


def test_labels_weights_and_streams_are_those_of_single_rows_in_order() -> None:
    own = answers()
    plain, shared = rollout_rows(own, pad_id=0), shared_rows([own[:4], own[4:6], own[6:]], pad_id=0)
    assert shared.num_sequences == plain.num_sequences == len(own)
    assert shared.tokens_BT.shape == (3, 8 + 5 + 1 + 7 + 3)
    is_plain, is_shared = plain.labels_BT != IGNORE, shared.labels_BT != IGNORE
    for one, other in (
        (plain.labels_BT, shared.labels_BT),
        (plain.sequences_BT, shared.sequences_BT),
        (plain.weights["policy"], shared.weights["policy"]),
        (plain.streams["advantage"], shared.streams["advantage"]),
        (plain.streams["behaviour"], shared.streams["behaviour"]),
    ):
        assert torch.equal(one[is_plain], other[is_shared])


def test_an_experts_model_reads_the_same_tokens() -> None:
    model, own = tiny.decoder(**MODELS["experts"]).double(), answers()
    found = []
    for rows in (rollout_rows(own, pad_id=0), shared_rows([own[:4], own[4:6], own[6:]], pad_id=0)):
        with torch.no_grad():
            scores = model(
                rows.tokens_BT, rows.documents_BT, labels_BT=rows.labels_BT, loss=LogProbs(), **rows.context()
            )
        assert isinstance(scores, TokenScores)
        found.append(scores.logp[rows.labels_BT != IGNORE])
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


def test_members_share_a_row_where_that_is_less_work() -> None:
    def rows_of(prompt: int, answer: int, budget: int = 10**6) -> list[int]:
        group = answers(((prompt, (answer,) * 8),))
        return [len(row) for row in shared_members(group, width=128, budget=budget)]

    assert rows_of(64, 13) == [8]
    assert rows_of(16, 512) == [1] * 8
    assert rows_of(256, 200) == [4] * 2
    assert rows_of(64, 13, budget=64 + 2 * 13) == [2] * 4
    assert rows_of(64, 13, budget=10) == [1] * 8
    groups = shared_members(answers(), width=128, budget=10**6)
    assert [(row[0][0].sample.id.group, len(row)) for row in groups] == [(0, 4), (1, 1), (1, 1), (2, 3)]


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_batch_shares_prompts_if_the_settings_say_so(is_shared: bool) -> None:
    scored = [each for each, _ in answers()]
    config = RolloutConfig(share_prompts=is_shared, drop_constant_groups=False)
    assembly = BatchAssembly(config, None, AdvantageConfig(), weight="policy", microbatch_tokens=32, pad_id=0, width=64)
    parts = assembly.batches(scored)[0].parts
    assert sum(part.num_sequences for part in parts) == len(scored)
    assert all(part.tokens_BT.numel() <= 32 for part in parts)
    assert any(part.positions_BT is not None for part in parts) == is_shared
    tokens = sum(int((part.labels_BT != IGNORE).sum()) for part in parts)
    assert tokens == sum(len(each.sample.ids) for each in scored)


def test_further_streams_are_those_of_single_rows() -> None:
    """A reference that reads the same prompt, and a teacher that reads a longer one."""
    model, scored = tiny.decoder().double(), [each for each, _ in answers()]

    def score(rows: TokenRows) -> Tensor:
        with torch.no_grad():
            found = model(
                rows.tokens_BT, rows.documents_BT, labels_BT=rows.labels_BT, loss=LogProbs(), **rows.context()
            )
        assert isinstance(found, TokenScores)
        return found.logp.float()

    streams = {
        "reference": StreamScorer(score=score),
        "teacher": StreamScorer(score=score, prompt=lambda ids: (*range(5), *ids)),
    }
    found = []
    for is_shared in (True, False):
        config = RolloutConfig(share_prompts=is_shared)
        assembly = BatchAssembly(
            config,
            None,
            AdvantageConfig(),
            weight="policy",
            microbatch_tokens=1024,
            pad_id=0,
            width=64,
            streams=streams,
        )
        (part,) = assembly.batches(scored)[0].parts
        is_label_BT = part.labels_BT != IGNORE
        # rows are in the order of their lengths, so that answers are told apart by the sampler's log-probabilities
        order_N = part.streams["behaviour"][is_label_BT].argsort()
        found.append([part.streams[name][is_label_BT][order_N] for name in ("behaviour", "reference", "teacher")])
    for shared, single in zip(*found, strict=True):
        torch.testing.assert_close(shared, single)


@pytest.mark.parametrize("window", [None, 3])
def test_both_forms_of_the_mask_give_the_same_attention(window: int | None) -> None:
    rows = shared_rows([answers()[:4], answers()[6:]], pad_id=0)
    assert rows.documents_BT is not None
    assert rows.positions_BT is not None
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, rows.tokens_BT.shape[1], 16, generator=generator) for _ in range(3))
    with torch.no_grad():
        dense, blocks = (
            attend(q, k, v, make(rows.documents_BT, rows.positions_BT, window), scale=0.25, soft_cap=None)
            for make in (branched_mask, branched_blocks)
        )
    is_real = rows.documents_BT[:, None, :, None].expand_as(dense) >= 0
    torch.testing.assert_close(dense[is_real], blocks[is_real])


def test_row_length_counts_what_is_computed() -> None:
    own = answers()
    assert row_length(own[:4]) == 8 + 16
    assert row_length(own[4:5]) == 2


def test_positions_of_rows_need_documents() -> None:
    rows = shared_rows([answers()[:4]], pad_id=0)
    with pytest.raises(ValueError, match="need documents"):
        tiny.decoder()(rows.tokens_BT, positions_T=rows.positions_BT)
    assert replace(rows, positions_BT=None).context() == {}
