from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windlass.train.data.order import Permutation


@given(size=st.integers(1, 5000), key=st.integers(0, 2**63))
def test_every_entry_comes_once(size: int, key: int) -> None:
    found_N = Permutation(size, "test", key)(np.arange(size))
    assert found_N.dtype == np.int64
    assert np.array_equal(np.sort(found_N), np.arange(size))


@given(size=st.integers(1, 2**48), key=st.integers(0, 100), index=st.integers(0, 2**48))
def test_an_entry_does_not_depend_on_its_company(size: int, key: int, index: int) -> None:
    permutation = Permutation(size, key)
    index %= size
    alone = permutation(np.array([index]))[0]
    among = permutation(np.array([0, index, size - 1, size // 2]))[1]
    assert alone == among
    assert 0 <= alone < size


def test_no_entries_are_no_problem() -> None:
    assert len(Permutation(0, 1)(np.zeros(0, dtype=np.int64))) == 0


def test_keys_and_sizes_make_other_orders() -> None:
    index_N = np.arange(1000)
    orders = [Permutation(1000, *key)(index_N) for key in [(1,), (2,), ("a", 1), ("a", 2)]]
    for number, order_N in enumerate(orders):
        for other_N in orders[:number]:
            assert (order_N == other_N).mean() < 0.02


def test_the_order_is_fixed_for_all_time() -> None:
    """A change of this list breaks every run that is resumed."""
    found = Permutation(1000, "epoch", 0, 3)(np.arange(8)).tolist()
    assert found == [490, 723, 447, 469, 14, 691, 376, 888]


def test_neighbours_are_spread_evenly() -> None:
    size = 10_000
    found_N: np.ndarray = Permutation(size, 5)(np.arange(size)).astype(float)
    assert abs(np.corrcoef(found_N[:-1], found_N[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(found_N, np.arange(size))[0, 1]) < 0.05
    counts = np.histogram(found_N[: size // 4], bins=10)[0]
    assert counts.min() > 200
    assert counts.max() < 300
