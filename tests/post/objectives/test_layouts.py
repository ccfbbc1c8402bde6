"""Packing, padding, the split into microbatches and what stands at labels that do not count change no gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.post.objectives.rows import Piece, laid_out
from windlass.post.objectives.batch import Objective, Scores, TokenRows
from windlass.post.objectives.config import (
    CorrectionConfig,
    KLConfig,
    PolicyConfig,
    PreferenceConfig,
    PreferenceLoss,
    RewardConfig,
    SupervisedConfig,
)
from windlass.post.objectives.policy import DistillationObjective, PolicyObjective
from windlass.post.objectives.preference import PreferenceObjective
from windlass.post.objectives.presets import PRESETS
from windlass.post.objectives.reward import RewardObjective
from windlass.post.objectives.supervised import SupervisedObjective

STREAMS = ("advantage", "behaviour", "proximal", "reference", "teacher")
PENALTY = KLConfig(coefficient=0.1, times_ratio=True)
CORRECTION = CorrectionConfig(level="sequence", clamp_max=1.5, mask_min=0.2)
EVERY_LOSS = tuple(PreferenceLoss(kind=kind) for kind in ("dpo", "dpo_norm", "ipo", "simpo", "wpo", "nll"))

OBJECTIVES: dict[str, Objective] = {
    **{
        f"policy/{name}": PolicyObjective(
            config=replace(
                each.policy,
                kl=PENALTY,
                correction=CORRECTION,
                entropy_bonus=0.1,
                length=6 if each.policy.denominator == "constant" else None,
            )
        )
        for name, each in PRESETS.items()
    },
    "preference": PreferenceObjective(config=PreferenceConfig(losses=EVERY_LOSS)),
    "reward": RewardObjective(config=RewardConfig(centring=0.1)),
    "supervised/token": SupervisedObjective(),
    "supervised/sequence": SupervisedObjective(config=SupervisedConfig(denominator="sequence")),
    "distillation": DistillationObjective(),
}


def pieces(seed: int, lengths: list[int]) -> list[Piece]:
    """Sequences with random streams, whose tokens name the place of their score; some labels do not count."""
    generator = torch.Generator().manual_seed(seed)
    found, start = [], 0
    for length in lengths:
        mask = (torch.rand(length, generator=generator) < 0.8).float()
        values = {name: -torch.randn(length, generator=generator).double().exp() for name in STREAMS}
        values["advantage"] = torch.randn((), generator=generator).double().expand(length)
        found.append(
            Piece(
                tokens_T=torch.arange(start, start + length),
                labels_T=torch.ones(length, dtype=torch.int64),
                weights=dict.fromkeys(("policy", "preference", "nll", "reward", "distillation"), mask),
                streams=values,
            )
        )
        start += length
    return found


def paired(rows: TokenRows) -> TokenRows:
    return replace(rows, pairs_P2=torch.arange(rows.num_sequences, dtype=torch.int32).view(-1, 2))


def gradient(objective: Objective, parts: list[TokenRows], leaves: Tensor) -> Tensor:
    """Gradient by all scores, as the train module computes it: sums of microbatches over global weights."""
    leaves = leaves.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    weights = [sum(column) for column in zip(*(objective.weigh(part) for part in parts), strict=True)]
    for part in parts:
        taken = [leaf[part.tokens_BT] for leaf in leaves]
        scores = Scores(logp_BT=taken[0], entropy_BT=taken[1], values_BT=taken[2], log_squares_BT=taken[3].detach())
        sums = objective.sums(part, scores)
        for name, weight in zip(objective.components, weights, strict=True):
            total = total + sums.losses[name] / max(weight, 1e-9)
        assert not any(metric.requires_grad for metric in sums.metrics.values())
    total.backward()
    assert leaves.grad is not None
    return leaves.grad


@pytest.mark.parametrize("name", OBJECTIVES)
@settings(max_examples=8)
@given(
    seed=st.integers(0, 10**6),
    pairs=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=3),
    padding=st.integers(0, 3),
)
def test_layouts_do_not_change_the_gradient(name: str, seed: int, pairs: list[tuple[int, int]], padding: int) -> None:
    objective, lengths = OBJECTIVES[name], [length for pair in pairs for length in pair]
    own, count = pieces(seed, lengths), len(lengths)
    leaves = -torch.randn(4, sum(lengths), generator=torch.Generator().manual_seed(seed)).double().exp()
    one_row_each = paired(laid_out([[number] for number in range(count)], own, padding=padding))
    wanted = gradient(objective, [one_row_each], leaves)
    assert wanted.isfinite().all()
    packed = paired(laid_out([list(range(count))], own, padding=padding + 1))
    split = [paired(laid_out([[number], [number + 1]], own)) for number in range(0, count, 2)]
    empty = replace(split[0], weights={key: value * 0 for key, value in split[0].weights.items()})
    empty = replace(empty, sequences_BT=torch.full_like(empty.sequences_BT, -1), num_sequences=0, pairs_P2=None)
    for parts in ([packed], split, [*reversed(split), empty]):
        torch.testing.assert_close(gradient(objective, parts, leaves), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_stands_at_labels_that_do_not_count_has_no_effect(name: str) -> None:
    objective, own = OBJECTIVES[name], pieces(3, [5, 4, 3, 5])
    leaves = -torch.randn(4, 17, generator=torch.Generator().manual_seed(1)).double().exp()
    rows = paired(laid_out([[0, 1], [2, 3]], own, padding=2))
    is_out = rows.weights["policy"] == 0
    spoilt = {key: stream.masked_fill(is_out, torch.nan) for key, stream in rows.streams.items()}
    wanted = gradient(objective, [rows], leaves)
    torch.testing.assert_close(gradient(objective, [replace(rows, streams=spoilt)], leaves), wanted)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_microbatch_in_which_nothing_counts_has_no_loss(name: str) -> None:
    objective, own = OBJECTIVES[name], pieces(3, [5, 4])
    rows = laid_out([[0, 1]], own)
    rows = replace(rows, weights={key: value * 0 for key, value in rows.weights.items()}, pairs_P2=None)
    leaves = -torch.ones(4, 9, dtype=torch.float64)
    assert not gradient(objective, [rows], leaves).any()


@pytest.mark.parametrize("far", [50.0, 1e4, torch.inf])
@pytest.mark.parametrize("name", [name for name in OBJECTIVES if name.startswith("policy")])
def test_extreme_ratios_give_finite_losses(name: str, far: float) -> None:
    objective, own = OBJECTIVES[name], pieces(4, [6, 6])
    rows = laid_out([[0], [1]], own)
    logp = torch.full((2, 6), -1.0, dtype=torch.float64)
    for stream in ("proximal", "reference", "behaviour"):
        for sign in (-1.0, 1.0):
            own_rows = replace(rows, streams={**rows.streams, stream: torch.full_like(logp, sign * far)})
            leaf = logp.clone().requires_grad_()
            sums = objective.sums(own_rows, Scores(logp_BT=leaf, entropy_BT=logp.abs()))
            loss = torch.stack(list(sums.losses.values())).sum()
            assert loss.isfinite()
            loss.backward()
            assert leaf.grad is not None
            assert leaf.grad.isfinite().all()


def test_the_current_policy_stands_in_for_a_missing_proximal_one() -> None:
    rows = laid_out([[0], [1]], pieces(4, [6, 6]))
    logp = rows.streams["proximal"]
    without = replace(rows, streams={key: each for key, each in rows.streams.items() if key != "proximal"})
    found = []
    for own in (rows, without):
        leaf = logp.clone().requires_grad_()
        PolicyObjective().sums(own, Scores(logp_BT=leaf)).losses["policy"].backward()
        assert leaf.grad is not None
        found.append(leaf.grad)
    torch.testing.assert_close(found[0], found[1])
    assert found[0].any()


def test_what_an_objective_asks_for() -> None:
    plain, full = PolicyObjective(), OBJECTIVES["policy/grpo"]
    assert plain.components == ("policy",)
    assert plain.needs == {"advantage"}
    assert not plain.wants_entropy
    assert full.components == ("policy", "entropy")
    assert full.needs == {"advantage", "reference", "behaviour"}
    assert full.wants_entropy
    simpo = PreferenceObjective(config=PreferenceConfig(losses=(PreferenceLoss(kind="simpo"),)))
    assert not simpo.needs
    assert not simpo.wants_log_squares
    assert OBJECTIVES["preference"].needs == {"reference"}
    assert OBJECTIVES["preference"].wants_log_squares
    assert RewardObjective().wants_values


def test_metrics_of_a_policy_are_means_over_tokens() -> None:
    rows = laid_out([[0], [1]], pieces(5, [4, 4]))
    ones = torch.ones(2, 4, dtype=torch.float64)
    advantage = torch.tensor([[1.0] * 4, [-1.0] * 4], dtype=torch.float64)
    logp = torch.tensor([[2.0, 0.5, 1.1, 1.0], [2.0, 0.5, 0.9, 1.0]], dtype=torch.float64).log()
    streams = {"advantage": advantage, "proximal": 0 * ones, "behaviour": -ones, "reference": logp - 0.5}
    rows = replace(rows, weights={"policy": ones.float()}, streams=streams)
    config = PolicyConfig(kl=KLConfig(coefficient=1.0, estimator="k1"), correction=CorrectionConfig(mask_max=2.0))
    found = PolicyObjective(config=config).sums(rows, Scores(logp_BT=logp, entropy_BT=3.0 * ones))
    means = {name: float(value / found.weights[name]) for name, value in found.metrics.items()}
    assert means.pop("ratio") == pytest.approx(9.0 / 8)
    assert means.pop("kl") == pytest.approx(0.5)
    assert means == {
        "clip_low": 1 / 8,
        "clip_high": 1 / 8,
        "correction": 0.0,
        "correction_dropped": 1.0,
        "entropy": 3.0,
    }
