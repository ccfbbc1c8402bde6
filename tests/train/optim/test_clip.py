"""The global norm against torch's, and strict norms that no number of rows changes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.train.optim.devices import DEVICES
from windlass.train.optim.clip import clip, grad_norm


def weights(scale: float = 1.0, device: str = "cpu") -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(7, 5), (11,), (3, 4, 2), (1,)]
    made = [nn.Parameter(torch.zeros(shape, device=device)) for shape in shapes]
    for weight in made:
        weight.grad = (scale * torch.randn(weight.shape, generator=generator)).to(device)
    return made


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_same_bits_as_torch(scale: float, device: str) -> None:
    ours, theirs = weights(scale, device), weights(scale, device)
    assert torch.equal(clip(ours, 1.0), nn.utils.clip_grad_norm_(theirs, 1.0))
    for left, right in zip(ours, theirs, strict=True):
        assert left.grad is not None
        assert right.grad is not None
        assert torch.equal(left.grad, right.grad)


def test_no_bound_only_measures() -> None:
    ours = weights()
    before = [weight.grad.clone() for weight in ours if weight.grad is not None]
    norm = clip(ours, None)
    torch.testing.assert_close(norm, torch.cat([grad.flatten() for grad in before]).norm())
    assert all(torch.equal(old, w.grad) for old, w in zip(before, ours, strict=True) if w.grad is not None)


def test_no_gradients_at_all() -> None:
    assert float(clip([nn.Parameter(torch.zeros(2))], 1.0)) == 0.0


def test_a_norm_that_is_no_number_is_told() -> None:
    ours = weights()
    assert ours[0].grad is not None
    ours[0].grad[0, 0] = float("nan")
    assert bool(clip(ours, 1.0).isnan())


def test_strict_norm_is_close() -> None:
    grads = [weight.grad for weight in weights() if weight.grad is not None]
    torch.testing.assert_close(grad_norm(grads, is_strict=True), grad_norm(grads))


def test_rows_sum_alike_in_any_company() -> None:
    """What the strict norm rests on: a row's sum has the same bits in a shard of any size."""
    from windlass.train.optim.clip import _rows

    generator = torch.Generator().manual_seed(5)
    for columns in (1, 2, 3, 8, 31, 64, 257, 1024):
        grad = torch.randn(24, columns, generator=generator)
        whole = _rows(grad)
        for size in (1, 2, 3, 6, 12):
            assert torch.equal(torch.cat([_rows(part) for part in grad.split(size)]), whole), (columns, size)
