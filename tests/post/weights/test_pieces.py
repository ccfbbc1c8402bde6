"""Pieces of weights: any change can be stored and applied, and few changes take few bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from windlass.post.weights.pieces import apply_change, change_between, gather, pieces_of, scatter


def random_content(size: int, dtype: Any, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, size, dtype=dtype, endpoint=True)


@given(
    size=st.integers(1, 200_000),
    dtype=st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64]),
    changed=st.lists(st.floats(0, 1, exclude_max=True), max_size=40),
)
def test_any_change_can_be_applied(size: int, dtype: Any, changed: list[float]) -> None:
    old = random_content(size, dtype, 1)
    new = old.copy()
    new[[int(place * size) for place in changed]] ^= 1
    kind, change = change_between(old, new)
    assert len(change) <= new.nbytes
    assert np.array_equal(apply_change(kind, change, old.copy()), new)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize(("share", "most"), [(0.0001, 0.0003), (0.003, 0.0062), (0.02, 0.031), (0.3, 0.46), (1.0, 1.0)])
def test_a_change_takes_little_more_than_what_changed(dtype: Any, share: float, most: float) -> None:
    old = random_content(500_000, dtype, 1)
    new = np.where(np.random.default_rng(2).random(len(old)) < share, old ^ 1, old)
    kind, change = change_between(old, new)
    assert np.array_equal(apply_change(kind, change, old.copy()), new)
    assert len(change) <= most * new.nbytes


def test_signed_zeros_and_payloads_of_nan_are_kept() -> None:
    old = torch.tensor([0.0, 1.0, float("nan")]).numpy().view(np.uint32)
    new = torch.tensor([-0.0, 1.0, 2.0]).numpy().view(np.uint32)
    kind, change = change_between(old, new)
    assert np.array_equal(apply_change(kind, change, old.copy()), new)


@pytest.mark.parametrize("change", [b"\xff\x01\x00", b"\x00\x01", b"\x00\x00\x01\x00\x01\x00\x00"])
def test_invalid_changes_are_refused(change: bytes) -> None:
    with pytest.raises(ValueError, match=r"outside|size"):
        apply_change("gaps8", change, np.zeros(8, dtype=np.uint16))


def test_tensors_of_all_types_survive_pieces_of_any_size() -> None:
    tensors = {
        "a": torch.randn(7, 3, dtype=torch.float64),
        "b": torch.randn(5, 5),
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 4),
        "c": torch.randn(11).bfloat16(),
        "d": torch.tensor([True, False, True]),
    }
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    sizes = [(name, tensor.numel(), tensor.element_size()) for name, tensor in tensors.items()]
    for piece_bytes in (8, 12, 64, 100_000):
        into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
        pieces = pieces_of(sizes, piece_bytes)
        assert all(piece.num_bytes <= max(piece_bytes, piece.item_bytes) for piece in pieces)
        for piece in pieces:
            scatter(piece, gather(piece, tensors), into, dtypes)
        assert all(torch.equal(into[name], tensor) for name, tensor in tensors.items())
