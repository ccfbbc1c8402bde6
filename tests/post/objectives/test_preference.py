"""Preference losses beyond the stored references: unaligned WPO, metrics, what is averaged over what."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.post.objectives.references import INPUTS, rows
from windlass.post.objectives.batch import Scores
from windlass.post.objectives.config import PreferenceConfig, PreferenceLoss
from windlass.post.objectives.preference import PreferenceObjective


def of(*losses: PreferenceLoss) -> PreferenceObjective:
    return PreferenceObjective(config=PreferenceConfig(losses=losses))


def test_unaligned_wpo_weighs_dpo_with_the_mean_probabilities_of_both_answers() -> None:
    own = replace(rows(), pairs_P2=torch.tensor([[0, 1]], dtype=torch.int32))
    scores = Scores(logp_BT=INPUTS["logp"])
    plain = of(PreferenceLoss(kind="dpo")).sums(own, scores).losses["dpo"]
    found = of(PreferenceLoss(kind="wpo", alignment="none")).sums(own, scores).losses["wpo"]
    means = [INPUTS["logp"][number][INPUTS["mask"][number] > 0].mean() for number in (0, 1)]
    torch.testing.assert_close(found, plain * (means[0] + means[1]).exp())


def test_weights_of_wpo_have_no_gradient_and_unaligned_ones_are_at_most_1() -> None:
    own = replace(rows(), pairs_P2=torch.tensor([[0, 1]], dtype=torch.int32))
    grads = []
    for kind in (PreferenceLoss(kind="dpo"), PreferenceLoss(kind="wpo", alignment="none")):
        logp = torch.full((8, 5), 0.5, dtype=torch.float64, requires_grad=True)  # no log-probability: weights above 1
        of(kind).sums(own, Scores(logp_BT=logp)).losses[kind.kind].backward()
        grads.append(logp.grad)
    torch.testing.assert_close(grads[0], grads[1])


def test_pairs_and_chosen_labels_are_what_is_averaged_over() -> None:
    objective = of(PreferenceLoss(kind="nll"), PreferenceLoss(kind="dpo"))
    assert objective.weigh(rows()) == (13.0, 4.0)
    assert objective.weigh(replace(rows(), pairs_P2=None)) == (0.0, 0.0)


def test_metrics_are_implicit_rewards_of_the_first_loss_of_pairs() -> None:
    objective = of(PreferenceLoss(kind="nll"), PreferenceLoss(kind="dpo", beta=0.5))
    found = objective.sums(rows(), Scores(logp_BT=INPUTS["logp"]))
    means = {name: float(total / found.weights[name]) for name, total in found.metrics.items()}
    rewards = 0.5 * ((INPUTS["logp"] - INPUTS["reference"]) * INPUTS["mask"]).sum(dim=-1)
    assert means["reward_chosen"] == pytest.approx(float(rewards[:4].mean()))
    assert means["reward_rejected"] == pytest.approx(float(rewards[4:].mean()))
    assert means["margin"] == pytest.approx(float((rewards[:4] - rewards[4:]).mean()))
    assert means["accuracy"] == pytest.approx(float((rewards[:4] > rewards[4:]).double().mean()))
    assert of(PreferenceLoss(kind="nll")).sums(rows(), Scores(logp_BT=INPUTS["logp"])).metrics == {}
