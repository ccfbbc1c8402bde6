from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.train.data.order import BucketOrder, RowOrder
from windlass.train.data.rows import PieceRows

Pairs = list[tuple[int, int]]


def epoch_of(order: RowOrder, epoch: int) -> Pairs:
    source_N, row_N = order.rows(epoch, np.arange(order.rows_per_epoch))
    return list(zip(source_N.tolist(), row_N.tolist(), strict=True))


SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=4)


@given(SIZES, st.integers(0, 1000), st.booleans())
def test_an_epoch_has_each_row_once(sizes: list[int], seed: int, is_shuffled: bool) -> None:
    order = RowOrder(sizes, sizes, seed=seed, is_shuffled=is_shuffled)
    everything = [(source, row) for source, size in enumerate(sizes) for row in range(size)]
    for epoch in range(3):
        found = epoch_of(order, epoch)
        assert sorted(found) == everything
        assert is_shuffled or found == everything


@settings(max_examples=40)
@given(st.integers(1, 30), st.integers(1, 90), st.integers(0, 100), st.booleans())
def test_no_row_comes_again_before_all_have_come(size: int, count: int, seed: int, is_shuffled: bool) -> None:
    """Over epochs too, whatever share of the source an epoch takes."""
    order = RowOrder([size], [count], seed=seed, is_shuffled=is_shuffled)
    counts: Counter[int] = Counter(dict.fromkeys(range(size), 0))
    for epoch in range(4):
        for _, row in epoch_of(order, epoch):
            counts[row] += 1
        assert max(counts.values()) - min(counts.values()) <= 1


def test_epochs_and_seeds_differ() -> None:
    order = RowOrder([200], [200], seed=1)
    assert epoch_of(order, 0) != epoch_of(order, 1)
    assert epoch_of(order, 0) != epoch_of(order.with_seed(2), 0)
    assert epoch_of(order, 0) == epoch_of(order.with_seed(2).with_seed(1), 0)


def table_of(lengths: list[int]) -> PieceRows:
    return PieceRows(np.zeros(len(lengths), dtype=np.int64), np.array(lengths), np.arange(len(lengths) + 1))


@given(st.lists(st.integers(1, 64), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 50))
def test_buckets_lose_nothing(lengths: list[int], group: int, seed: int) -> None:
    order = BucketOrder([len(lengths)], [len(lengths)], seed=seed, tables=[table_of(lengths)], group=group)
    for epoch in range(3):
        assert sorted(row for _, row in epoch_of(order, epoch)) == list(range(len(lengths)))


def test_batches_of_buckets_have_rows_of_one_power_of_two() -> None:
    """In every epoch, though epochs are no whole number of batches."""
    lengths = np.random.default_rng(0).integers(1, 65, size=1003).tolist()
    order = BucketOrder([1003], [1003], seed=3, tables=[table_of(lengths)], group=10)
    rows = [row for epoch in range(3) for _, row in epoch_of(order, epoch)]
    widths = [{(lengths[row] - 1).bit_length() for row in rows[start : start + 10]} for start in range(0, 3000, 10)]
    assert sum(len(width) > 1 for width in widths) <= 3 * 8  # a border between buckets, and one between epochs
    assert len({max(width) for width in widths[:20]}) > 2  # and not the short ones first
