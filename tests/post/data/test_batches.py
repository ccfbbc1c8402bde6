"""Batches of rows: every row once an epoch, work shared evenly, the same batch for any number of processes."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.post.data.test_prepared import config_of, encoder, sums, write
from windlass.core.errors import SpecError
from windlass.post.data.batches import RowLoader, collate, divide
from windlass.post.data.config import MixtureConfig
from windlass.post.data.prepared import PreparedData, prepare
from windlass.train.batch import IGNORE
from windlass.train.data.protocol import Share


@pytest.fixture
def data(tmp_path: Path) -> PreparedData:
    rows = [*sums(12), {"prompt": "long " * 6, "completion": "answer"}]
    return prepare(config_of(write(tmp_path / "a.jsonl", rows)), "chat", encoder(), tmp_path / "cache")


def loader_of(data: PreparedData, *, share: Share | None = None, batch_rows: int = 4, **changes: object) -> RowLoader:
    config = MixtureConfig(mix=(), batch_rows=batch_rows, max_length=64, microbatch_tokens=64, prefetch=0, **changes)  # type: ignore[arg-type]
    return RowLoader(data, config, weights=("nll",), pad_id=257, seed=3, share=share or Share(rank=0, world=1))


def test_labels_are_the_learned_tokens_one_place_earlier(data: PreparedData) -> None:
    rows = collate(data, (0, 12), weights=("nll",), pad_id=257)
    assert rows.tokens_BT.shape == (2, 37)
    assert rows.tokens_BT[0, :6].tolist() == [*b"0+1=1", 256]
    assert rows.tokens_BT[0, 6:].unique().tolist() == [257]
    assert rows.labels_BT[0, 3:5].tolist() == [ord("1"), 256]
    assert int((rows.labels_BT != IGNORE).sum()) == 2 + 7 == float(rows.weights["nll"].sum())
    assert torch.equal(rows.sequences_BT >= 0, rows.labels_BT != IGNORE)
    assert rows.sequences_BT[1].max() == 1


def test_an_epoch_has_every_row_once(data: PreparedData) -> None:
    loader = loader_of(data, batch_rows=5)
    seen = Counter(row for batch in islice(loader, 13) for row in batch.rows)
    assert seen == Counter(dict.fromkeys(range(13), 5))  # 13 batches of 5 are 5 epochs of 13
    assert loader.state_dict()["epoch"] == 5
    assert loader.batches_until(6, loader.state_dict()) == 3


def test_a_resumed_loader_continues_where_it_was(data: PreparedData) -> None:
    whole = [batch.rows for batch in islice(loader_of(data), 9)]
    first = loader_of(data)
    assert [batch.rows for batch in islice(first, 4)] == whole[:4]
    second = loader_of(data)
    second.load_state_dict(first.state_dict())
    assert [batch.rows for batch in islice(second, 5)] == whole[4:]


def test_another_batch_size_or_data_is_refused(data: PreparedData) -> None:
    state = loader_of(data).state_dict()
    with pytest.raises(SpecError, match=r"`data\.batch_rows` changed since the checkpoint: from 4 to 5"):
        loader_of(data, batch_rows=5).load_state_dict(state)
    loader_of(data, batch_rows=5, allow_changes=True).load_state_dict(state)


def test_processes_share_the_same_batches(data: PreparedData) -> None:
    alone = [Counter(batch.rows) for batch in islice(loader_of(data, batch_rows=6), 5)]
    shares = [loader_of(data, batch_rows=6, share=Share(rank=rank, world=3)) for rank in range(3)]
    for number, parts in enumerate(zip(*(islice(loader, 5) for loader in shares), strict=True)):
        assert sum((Counter(part.rows) for part in parts), Counter()) == alone[number]
        assert len({len(part.parts) for part in parts}) == 1


def test_an_empty_microbatch_has_no_weight(data: PreparedData) -> None:
    rows = collate(data, (), weights=("nll",), pad_id=257)
    assert float(rows.weights["nll"].sum()) == 0.0
    assert rows.num_sequences == 0


@given(
    st.dictionaries(st.integers(0, 500), st.lists(st.integers(1, 90), min_size=1, max_size=3), min_size=1, max_size=60),
    st.integers(1, 5),
    st.integers(90, 400),
)
def test_work_is_divided(costs: dict[int, list[int]], num_processes: int, budget: int) -> None:
    parts = divide(costs, num_processes=num_processes, budget=budget)
    assert sorted(row for process in parts for part in process for row in part) == sorted(costs)
    assert len({len(process) for process in parts}) == 1
    for process in parts:
        for part in process:
            width, count = max((max(costs[row]) for row in part), default=0), sum(len(costs[row]) for row in part)
            assert width * count <= budget or len(part) == 1
    work = [sum(n * n for part in process for row in part for n in costs[row]) for process in parts]
    assert max(work) - min(work) <= max(sum(n * n for n in lengths) for lengths in costs.values())
