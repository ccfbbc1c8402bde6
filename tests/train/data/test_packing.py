from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windlass.train.data.rows import pack_documents


def rows_of(lengths: list[int], length: int, window: int = 1 << 20) -> list[list[int]]:
    order_K, offsets_R = pack_documents(np.array(lengths, dtype=np.int64), length, window=window)
    return [order_K[start:stop].tolist() for start, stop in pairwise(offsets_R.tolist())]


def slow_best_fit(lengths: list[int], length: int) -> int:
    """Rows that the textbook's algorithm needs."""
    left: list[int] = []
    for size in sorted(lengths, reverse=True):
        fitting = [(room, number) for number, room in enumerate(left) if room >= size]
        if fitting:
            left[min(fitting)[1]] -= size
        else:
            left.append(length - size)
    return len(left)


@given(st.lists(st.integers(1, 16), max_size=80), st.sampled_from([7, 1 << 20]))
def test_every_document_stands_once_in_a_row_that_holds_it(lengths: list[int], window: int) -> None:
    rows = rows_of(lengths, 16, window)
    assert sorted(document for row in rows for document in row) == list(range(len(lengths)))
    assert all(0 < sum(lengths[document] for document in row) <= 16 for row in rows)


@given(st.lists(st.integers(1, 20), max_size=60))
def test_it_is_best_fit_decreasing(lengths: list[int]) -> None:
    assert len(rows_of(lengths, 20)) == slow_best_fit(lengths, 20)


def test_documents_of_different_windows_share_no_row() -> None:
    assert rows_of([4, 4, 4, 4], 8, window=1) == [[0], [1], [2], [3]]
    assert rows_of([4, 4, 4, 4], 8) == [[0, 2], [1, 3]]


def test_little_is_padding() -> None:
    lengths = np.random.default_rng(0).geometric(1 / 300, size=20_000).clip(max=2048)
    order_K, offsets_R = pack_documents(lengths, 2048)
    assert len(order_K) == 20_000
    assert lengths.sum() / ((len(offsets_R) - 1) * 2048) > 0.999
