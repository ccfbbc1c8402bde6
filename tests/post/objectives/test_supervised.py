"""Cross-entropy of weighted labels; distillation, whose expected gradient is that of the reverse KL.

Legend: B rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from tests.post.objectives.rows import Piece, laid_out
from windlass.post.objectives.batch import Scores, TokenRows
from windlass.post.objectives.config import CorrectionConfig, DistillationConfig, KLConfig, SupervisedConfig
from windlass.post.objectives.policy import DistillationObjective, kl_estimates
from windlass.post.objectives.supervised import SupervisedObjective


def rows(weight: torch.Tensor, teacher: torch.Tensor | None = None) -> TokenRows:
    """One sequence of the width of `weight` a row."""
    own = [
        Piece(
            tokens_T=torch.zeros(len(each), dtype=torch.int64),
            labels_T=torch.ones(len(each)).long(),
            weights={"nll": each},
        )
        for each in weight
    ]
    made = laid_out([[number] for number in range(len(own))], own)
    return made if teacher is None else replace(made, weights={"distillation": weight}, streams={"teacher": teacher})


def test_labels_count_with_their_weights() -> None:
    weight = torch.tensor([[1.0, 0.5, 0.0], [0.0, 2.0, 0.0]])
    logp = torch.tensor([[-1.0, -2.0, torch.nan], [torch.nan, -3.0, torch.nan]], dtype=torch.float64)
    by_token, by_sequence = SupervisedObjective(), SupervisedObjective(config=SupervisedConfig(denominator="sequence"))
    own = rows(weight)
    assert (by_token.weigh(own), by_sequence.weigh(own)) == ((3.5,), (2.0,))
    assert by_token.sums(own, Scores(logp_BT=logp)).losses["nll"] == pytest.approx(1.0 + 1.0 + 6.0)
    assert by_sequence.sums(own, Scores(logp_BT=logp)).losses["nll"] == pytest.approx(2.0 / 1.5 + 3.0)


@pytest.mark.parametrize("estimator", ["reward", "k2"])
def test_the_expected_gradient_of_distillation_is_that_of_the_reverse_kl(estimator: Literal["reward", "k2"]) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_V = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher_V = torch.randn(7, generator=generator, dtype=torch.float64).log_softmax(0)
    logs_V = logits_V.log_softmax(0)
    (logs_V.exp() * (logs_V - teacher_V)).sum().backward()
    assert logits_V.grad is not None
    wanted, logits_V.grad = logits_V.grad, None
    objective = DistillationObjective(config=DistillationConfig(estimator=estimator))
    own = rows(logs_V.detach().exp()[None], teacher_V[None])  # each token as often as the student samples it
    found = objective.sums(own, Scores(logp_BT=logits_V.log_softmax(0)[None]))
    found.losses["distillation"].backward()
    torch.testing.assert_close(logits_V.grad, wanted, rtol=1e-12, atol=1e-12)
    true = (logs_V.exp() * (logs_V - teacher_V)).sum()
    assert found.metrics["reverse_kl"] == pytest.approx(float(true.detach()))
    assert objective.needs == {"teacher"}


def test_a_correction_of_distillation_restores_the_gradient_of_answers_of_another_student() -> None:
    generator = torch.Generator().manual_seed(0)
    logits_V = torch.randn(7, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher_V, older_V = torch.randn(2, 7, generator=generator, dtype=torch.float64).log_softmax(-1)
    logs_V = logits_V.log_softmax(0)
    (logs_V.exp() * (logs_V - teacher_V)).sum().backward()
    assert logits_V.grad is not None
    wanted, logits_V.grad = logits_V.grad, None
    objective = DistillationObjective(config=DistillationConfig(correction=CorrectionConfig(clamp_max=1e9)))
    own = rows(older_V.exp()[None], teacher_V[None])  # each token as often as the older student samples it
    own = replace(own, streams={**own.streams, "behaviour": older_V[None]})
    found = objective.sums(own, Scores(logp_BT=logits_V.log_softmax(0)[None]))
    found.losses["distillation"].backward()
    torch.testing.assert_close(logits_V.grad, wanted, rtol=1e-12, atol=1e-12)
    assert found.metrics["correction"] == pytest.approx(1.0)  # the mean weight
    assert objective.needs == {"teacher", "behaviour"}


def test_a_teacher_that_forbids_a_token_gives_a_finite_gradient() -> None:
    for estimator in ("reward", "k2", "k3"):
        logp = torch.tensor([[-1.0, -2.0]], dtype=torch.float64, requires_grad=True)
        own = rows(torch.ones(1, 2), torch.tensor([[-torch.inf, -1.0]]))
        objective = DistillationObjective(config=DistillationConfig(estimator=estimator))
        loss = objective.sums(own, Scores(logp_BT=logp)).losses["distillation"]
        loss.backward()
        assert loss.isfinite()
        assert logp.grad is not None
        assert logp.grad.isfinite().all()


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_estimators_of_kl_have_its_expectation(estimator: Literal["k1", "k3"]) -> None:
    generator = torch.Generator().manual_seed(1)
    policy, reference = torch.randn(2, 9, generator=generator, dtype=torch.float64).log_softmax(-1)
    kl = (policy.exp() * (policy - reference)).sum()
    found = kl_estimates(KLConfig(estimator=estimator), policy - reference)
    torch.testing.assert_close((policy.exp() * found).sum(), kl)


def test_estimators_are_what_their_names_say() -> None:
    ratio = torch.tensor([-50.0, -0.5, 0.0, 0.5, 50.0], dtype=torch.float64)
    found = {name: kl_estimates(KLConfig(estimator=name), ratio).tolist() for name in ("k1", "k2", "abs")}
    assert found["k1"] == [-40.0, -0.5, 0.0, 0.5, 40.0]
    assert found["k2"] == [800.0, 0.125, 0.0, 0.125, 800.0]
    assert found["abs"] == [40.0, 0.5, 0.0, 0.5, 40.0]
    assert (kl_estimates(KLConfig(), ratio) >= 0).all()
