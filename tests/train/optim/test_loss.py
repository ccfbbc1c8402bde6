"""Loss sums against torch's own cross-entropy, and the mean over tokens for any split.

Legend: B rows, T tokens of a row, D width, V vocabulary.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.train.optim.devices import DEVICES
from windlass.train.batch import IGNORE
from windlass.train.optim import loss as loss_module
from windlass.train.optim.config import LossConfig
from windlass.train.optim.loss import is_chunked, language_loss

KINDS = ["plain", "chunked"]


def task(
    rows: int = 3, length: int = 50, width: int = 16, vocabulary: int = 300, device: str = "cpu"
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden_BTD = torch.randn(rows, length, width, generator=generator).to(device).requires_grad_()
    head_VD = torch.randn(vocabulary, width, generator=generator).to(device).requires_grad_()
    labels_BT = torch.randint(0, vocabulary, (rows, length), generator=generator)
    labels_BT[0, :5] = IGNORE
    labels_BT[-1, -1] = IGNORE
    return hidden_BTD, head_VD, labels_BT.to(device)


def reference(hidden_BTD: Tensor, head_VD: Tensor, labels_BT: Tensor, z_loss: float, cap: float | None) -> Tensor:
    logits = (hidden_BTD.double() @ head_VD.double().T).flatten(0, 1)
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    counts = labels_BT.flatten() != IGNORE
    loss = F.cross_entropy(logits, labels_BT.flatten(), reduction="sum", ignore_index=IGNORE)
    return loss + z_loss * logits.logsumexp(-1)[counts].square().sum()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("cap", [None, 5.0])
@pytest.mark.parametrize("z_loss", [0.0, 1e-3])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_and_gradients(
    kind: str, z_loss: float, cap: float | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "MIN_CHUNK", 7)
    monkeypatch.setattr(loss_module, "CPU_CHUNK_LOGITS", 7 * 300)
    monkeypatch.setattr(loss_module, "GPU_CHUNK_LOGITS", 7 * 300)
    hidden, head, labels = task(device=device)
    expected = reference(hidden, head, labels, z_loss, cap)
    (expected * 0.5).backward()
    wanted = [tensor.grad.clone() for tensor in (hidden, head) if tensor.grad is not None]
    for tensor in (hidden, head):
        tensor.grad = None
    loss, squares = language_loss(hidden, head, labels, loss=LossConfig(z_loss=z_loss, kind=kind), soft_cap=cap)  # type: ignore[arg-type]
    ((loss + squares) * 0.5).backward()
    assert loss.dtype == squares.dtype == torch.float64
    torch.testing.assert_close((loss + squares).double(), expected, rtol=1e-6, atol=0)
    assert hidden.grad is not None
    assert head.grad is not None
    torch.testing.assert_close([hidden.grad, head.grad], wanted, rtol=1e-4, atol=1e-5)
    assert (squares > 0) == (z_loss > 0)


@settings(max_examples=40, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 6), max_size=4),
    padding=st.integers(0, 9),
    rows_of_padding=st.integers(0, 2),
    kind=st.sampled_from(KINDS),
    z_loss=st.sampled_from([0.0, 1e-4]),
)
def test_equal_to_the_mean_over_tokens_for_any_split(
    cuts: list[int], padding: int, rows_of_padding: int, kind: str, z_loss: float
) -> None:
    hidden, head, labels = task(rows=6, length=21, vocabulary=40)
    counted = (labels != IGNORE).flatten()
    logits = (hidden.double() @ head.double().T).flatten(0, 1)[counted]
    expected = F.cross_entropy(logits, labels.flatten()[counted]) + z_loss * logits.logsumexp(-1).square().mean()
    hidden = F.pad(hidden, (0, 0, 0, padding, 0, rows_of_padding), value=3.0)
    labels = F.pad(labels, (0, padding, 0, rows_of_padding), value=IGNORE)
    bounds = [0, *sorted(cuts), len(labels)]
    config = LossConfig(kind=kind, z_loss=z_loss)  # type: ignore[arg-type]
    parts = [language_loss(hidden[a:b], head, labels[a:b], loss=config) for a, b in pairwise(bounds) if b > a]
    total = torch.stack([loss + squares for loss, squares in parts]).sum()
    mean = total / counted.sum()
    assert abs(float(mean.detach()) - float(expected.detach())) <= 1e-6 * abs(float(expected.detach()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_of_nothing_but_padding_costs_nothing(kind: str) -> None:
    hidden, head, labels = task()
    loss, squares = language_loss(
        hidden,
        head,
        torch.full_like(labels, IGNORE),
        loss=LossConfig(kind=kind, z_loss=0.1),  # type: ignore[arg-type]
    )
    (loss + squares).backward()
    assert (float(loss.detach()), float(squares.detach())) == (0.0, 0.0)
    assert hidden.grad is not None
    assert float(hidden.grad.abs().max()) == 0.0


def test_chunks_never_hold_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_module, "MIN_CHUNK", 10)
    monkeypatch.setattr(loss_module, "CPU_CHUNK_LOGITS", 1)
    sizes: list[int] = []
    real = F.log_softmax

    def watch(logits: Tensor, dim: int) -> Tensor:
        sizes.append(logits.numel())
        return real(logits, dim=dim)

    monkeypatch.setattr(F, "log_softmax", watch)
    hidden, head, labels = task()
    language_loss(hidden, head, labels, loss=LossConfig(kind="chunked"))
    assert sizes == [10 * 300] * 15


def test_a_frozen_head_gets_no_gradient_and_none_is_computed() -> None:
    hidden, head, labels = task()
    loss, _ = language_loss(hidden, head.detach(), labels, loss=LossConfig(kind="chunked"))
    loss.backward()
    assert hidden.grad is not None


def test_without_gradients() -> None:
    hidden, head, labels = task()
    with torch.no_grad():
        loss, _ = language_loss(hidden, head, labels, loss=LossConfig(kind="chunked"))
    assert not loss.requires_grad
    torch.testing.assert_close(loss.double(), reference(hidden, head, labels, 0.0, None).detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_autocast_computes_in_bfloat16_and_sums_in_float64(kind: str, device: str) -> None:
    hidden, head, labels = task(device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        loss, _ = language_loss(hidden, head, labels, loss=LossConfig(kind=kind))  # type: ignore[arg-type]
    loss.backward()
    assert loss.dtype == torch.float64
    assert head.grad is not None
    assert head.grad.dtype == torch.float32
    low = (hidden.bfloat16() @ head.bfloat16().T).float().flatten(0, 1)
    expected = F.cross_entropy(low, labels.flatten(), reduction="sum")
    torch.testing.assert_close(loss, expected.double(), rtol=1e-5, atol=0)


def test_a_second_backward_is_refused_by_torch() -> None:
    hidden, head, labels = task()
    loss, _ = language_loss(hidden, head, labels, loss=LossConfig(kind="chunked"))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_auto_knows_when_chunks_pay() -> None:
    hidden, head = torch.zeros(2**15, 4), torch.zeros(2**14, 4)
    assert is_chunked(hidden, head, "auto")
    assert is_chunked(hidden, head, "chunked")
    assert not is_chunked(hidden, head, "plain")
    few = hidden[:8].to("meta")
    assert not is_chunked(few, head.to("meta"), "auto")
    assert is_chunked(hidden.to("meta"), head.to("meta"), "auto")


def test_a_subclass_of_tensor_goes_the_plain_way() -> None:
    class Sharded(torch.Tensor):
        pass

    assert not is_chunked(torch.zeros(4, 4), torch.zeros(8, 4).as_subclass(Sharded), "auto")
    assert is_chunked(torch.zeros(4, 4), torch.nn.Parameter(torch.zeros(8, 4)), "auto")
