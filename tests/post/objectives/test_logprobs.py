"""Log-probabilities in chunks against torch's log_softmax of all logits, alone and through a decoder's forward.

Legend: B rows, T tokens of a row, N positions, D width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.train.optim.devices import DEVICES
from windlass.post.objectives.logprobs import LogProbs, TokenScores, token_logprobs
from windlass.train.batch import IGNORE
from windlass.train.model.config import AttentionConfig, ModelConfig
from windlass.train.model.decoder import Decoder

TINY = ModelConfig(vocab_size=23, d_model=16, num_layers=2, hidden=32, attention=AttentionConfig(num_heads=2))


def task(positions: int = 9, width: int = 5, vocabulary: int = 7, *, device: str = "cpu") -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    hidden_ND = torch.randn(positions, width, generator=generator, dtype=torch.float64)
    head_VD = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64)
    labels_N = torch.randint(0, vocabulary, (positions,), generator=generator)
    labels_N[2] = labels_N[7] = IGNORE
    return hidden_ND.to(device).requires_grad_(), head_VD.to(device).requires_grad_(), labels_N.to(device)


def plain(
    hidden_ND: Tensor, head_VD: Tensor, labels_N: Tensor, temperature: float, cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    logits_NV = hidden_ND @ head_VD.T
    if cap is not None:
        logits_NV = cap * torch.tanh(logits_NV / cap)
    logs_NV = F.log_softmax(logits_NV / temperature, dim=-1)
    counts_N = labels_N != IGNORE
    logp_N = logs_NV.gather(1, labels_N.clamp(min=0)[:, None])[:, 0]
    entropy_N = -(logs_NV.exp() * logs_NV).sum(dim=-1)
    squares_N = logs_NV.exp().square().sum(dim=-1).log()
    return logp_N * counts_N, entropy_N * counts_N, squares_N * counts_N


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("cap", [None, 2.5])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_are_those_of_all_logits(
    temperature: float, cap: float | None, rows: int, device: str
) -> None:
    hidden, head, labels = task(device=device)
    weights = torch.linspace(-1.0, 2.0, len(labels), dtype=torch.float64, device=device)
    wanted = plain(hidden, head, labels, temperature, cap)
    expected = torch.autograd.grad((wanted[0] * weights + wanted[1] * weights.flip(0)).sum(), (hidden, head))
    found = token_logprobs(
        hidden,
        head,
        labels,
        temperature=temperature,
        soft_cap=cap,
        wants_entropy=True,
        wants_log_squares=True,
        rows=rows,
    )
    assert found.entropy is not None
    assert found.log_squares is not None
    for own, theirs in zip(found[:3], wanted, strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-12, atol=1e-12)
    grads = torch.autograd.grad((found.logp * weights + found.entropy * weights.flip(0)).sum(), (hidden, head))
    torch.testing.assert_close(grads, expected, rtol=1e-12, atol=1e-12)
    assert not found.log_squares.requires_grad


def test_gradients_pass_gradcheck() -> None:
    hidden, head, labels = task(8, 3, 5)

    def scores(hidden_ND: Tensor, head_VD: Tensor) -> tuple[Tensor, Tensor]:
        found = token_logprobs(hidden_ND, head_VD, labels, temperature=0.8, soft_cap=3.0, wants_entropy=True, rows=2)
        assert found.entropy is not None
        return found.logp, found.entropy

    assert torch.autograd.gradcheck(scores, (hidden, head))


def test_float32_is_within_1e_5_of_float64() -> None:
    hidden, head, labels = task(40, 16, 300)
    narrow = [tensor.detach().float().requires_grad_() for tensor in (hidden, head)]
    wide = token_logprobs(hidden, head, labels)
    found = token_logprobs(narrow[0], narrow[1], labels)
    assert found.logp.dtype == torch.float32
    torch.testing.assert_close(found.logp.double(), wide.logp, rtol=1e-5, atol=1e-5)
    expected = torch.autograd.grad(wide.logp.sum(), (hidden, head))
    grads = torch.autograd.grad(found.logp.sum(), narrow)
    torch.testing.assert_close([grad.double() for grad in grads], list(expected), rtol=1e-5, atol=1e-5)


def test_positions_without_labels_get_no_gradient_even_if_their_score_does() -> None:
    hidden, head, labels = task()
    found = token_logprobs(hidden, head, labels, wants_entropy=True)
    assert found.entropy is not None
    assert found.logp[2] == found.entropy[2] == 0.0
    (found.logp + found.entropy).sum().backward()
    assert hidden.grad is not None
    assert not hidden.grad[2].any()
    assert hidden.grad[3].any()


def test_no_labels_at_all() -> None:
    hidden, head, labels = task()
    found = token_logprobs(hidden, head, torch.full_like(labels, IGNORE), wants_entropy=True)
    found.logp.sum().backward()
    assert found.logp.tolist() == [0.0] * 9
    assert hidden.grad is not None
    assert not hidden.grad.any()


def test_a_token_that_cannot_occur_adds_nothing_to_the_entropy() -> None:
    hidden = torch.tensor([[1.0]], dtype=torch.float64, requires_grad=True)
    head = torch.tensor([[0.0], [0.0], [-torch.inf]], dtype=torch.float64)
    found = token_logprobs(hidden, head, torch.tensor([0]), wants_entropy=True)
    assert found.entropy is not None
    torch.testing.assert_close(found.entropy, torch.tensor([2.0], dtype=torch.float64).log())


def test_autocast_computes_logits_in_bfloat16() -> None:
    hidden, head, labels = task(40, 16, 300)
    narrow = [tensor.detach().float().requires_grad_() for tensor in (hidden, head)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = token_logprobs(narrow[0], narrow[1], labels)
    assert found.logp.dtype == torch.float32
    error = (found.logp.double() - token_logprobs(hidden, head, labels).logp).detach().abs().max()
    assert 1e-4 < float(error) < 0.2
    found.logp.sum().backward()
    assert narrow[0].grad is not None
    assert narrow[0].grad.dtype == torch.float32


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_decoder_scores_labels_inside_its_forward(is_tied: bool) -> None:
    torch.manual_seed(0)
    model = Decoder(replace(TINY, is_tied=is_tied, logit_soft_cap=20.0)).double()
    tokens_BT = torch.randint(0, 23, (2, 6))
    labels_BT = tokens_BT.roll(-1, 1)
    labels_BT[:, :2] = labels_BT[:, -1] = IGNORE
    found = model(tokens_BT, labels_BT=labels_BT, loss=LogProbs(temperature=0.9, wants_entropy=True))
    assert isinstance(found, TokenScores)
    assert found.aux is None
    found.logp.sum().backward()
    grads = {name: cast("Tensor", weight.grad).clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    logs = F.log_softmax(cast("Tensor", model(tokens_BT)) / 0.9, dim=-1)
    wanted = logs.gather(2, labels_BT.clamp(min=0)[..., None])[..., 0] * (labels_BT != IGNORE)
    torch.testing.assert_close(found.logp, wanted, rtol=1e-12, atol=1e-12)
    wanted.sum().backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(grads[name], weight.grad, rtol=1e-11, atol=1e-11)
