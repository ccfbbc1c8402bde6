"""The order of batches: the same for every number of processes, exact when resumed, nothing lost."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.data.corpora import PAD, VOCAB, make_config, make_folder
from windlass.core.errors import SpecError
from windlass.train.batch import Batch
from windlass.train.data.build import build_loader
from windlass.train.data.config import DataConfig, SourceConfig
from windlass.train.data.loader import TokenLoader
from windlass.train.data.protocol import Share

LENGTHS = (9, 3, 30, 7, 12, 5, 18, 2, 25, 11, 40, 6, 8, 4, 21, 17)
"""Tokens of documents: 218 in all."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("tokens") / "a", LENGTHS * 4, file_tokens=100)


def build(config: DataConfig, *, rank: int = 0, world: int = 1, seed: int = 5) -> TokenLoader:
    return build_loader(config, seed=seed, share=Share(rank=rank, world=world), vocab_size=VOCAB)


def take(loader: TokenLoader, count: int) -> list[Batch]:
    batches = iter(loader)
    found = list(islice(batches, count))
    batches.close()  # type: ignore[attr-defined]
    return found


def joined(shares: list[Batch]) -> list[list[int]]:
    """The rows of a global batch in their order: microbatch by microbatch, process by process."""
    step = shares[0].num_rows_step
    num_steps = len(shares[0].tokens_BT) // step
    rows = [share.tokens_BT[i * step : (i + 1) * step] for i in range(num_steps) for share in shares]
    return torch.cat(rows).tolist()


def same(first: Batch, second: Batch) -> bool:
    return bool(torch.equal(first.tokens_BT, second.tokens_BT) and torch.equal(first.labels_BT, second.labels_BT))


@pytest.mark.parametrize("layout", ["chunk", "pack", "pad", "bucket"])
@pytest.mark.parametrize(("world", "microbatch"), [(1, 8), (1, 32), (2, 8), (2, 16), (4, 8), (4, 16)])
def test_processes_and_microbatches_change_nothing(folder: Path, layout: str, world: int, microbatch: int) -> None:
    config = make_config(folder, layout=layout, mask_documents=True)
    whole = [batch.tokens_BT.tolist() for batch in take(build(config), 30)]
    dealt = replace(config, microbatch_tokens=microbatch)
    shares = [take(build(dealt, rank=rank, world=world), 30) for rank in range(world)]
    for number, batch in enumerate(whole):
        assert joined([share[number] for share in shares]) == batch
        assert {share[number].num_rows_step for share in shares} == {microbatch // 8}
    assert len({row for share in shares for row in share[0].rows}) == 8


@pytest.mark.parametrize("layout", ["chunk", "pack", "pad", "bucket"])
def test_epochs_lose_and_repeat_no_row(folder: Path, layout: str) -> None:
    loader = build(make_config(folder, layout=layout))
    rows: list[int] = []
    for batch in take(loader, 3 * loader.rows_per_epoch // 8 + 1):
        rows += batch.rows
    size = loader.rows_per_epoch
    assert rows[: 3 * size] == [*range(size)] * 3
    assert loader.batches_per_epoch == size // 8


def test_rows_of_an_epoch_are_those_of_the_corpus(folder: Path) -> None:
    loader = build(make_config(folder, batch_tokens=8))
    found = Counter(tuple(batch.tokens_BT[0].tolist()) for batch in take(loader, loader.rows_per_epoch))
    plain = build(make_config(folder, batch_tokens=8, is_shuffled=False))
    in_order = [tuple(batch.tokens_BT[0].tolist()) for batch in take(plain, plain.rows_per_epoch)]
    assert in_order[0] == (1, 2, 3, 4, 5, 6, 7, 8)
    assert found == Counter(in_order)


@settings(max_examples=12)
@given(
    st.sampled_from(["chunk", "pack", "bucket"]),
    st.lists(st.integers(0, 25), min_size=1, max_size=4),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([1, 2, 4]),
)
def test_resuming_anywhere_goes_on_the_same(
    folder: Path, layout: str, stops: list[int], prefetch: int, world: int
) -> None:
    config = make_config(folder, layout=layout, prefetch=prefetch)
    straight = take(build(config, rank=world - 1, world=world), sum(stops) + 3)
    found: list[Batch] = []
    state = build(config).state_dict()
    for count in [*stops, 3]:
        loader = build(config, rank=world - 1, world=world)
        loader.load_state_dict(json.loads(json.dumps(state)))
        found += take(loader, count)
        state = loader.state_dict()
    assert all(same(*pair) for pair in zip(straight, found, strict=True))


def test_a_loader_that_is_begun_again_goes_on(folder: Path) -> None:
    config = make_config(folder, prefetch=3)
    loader, straight = build(config), take(build(config), 7)
    found = take(loader, 2) + take(loader, 1) + take(loader, 4)
    assert all(same(*pair) for pair in zip(straight, found, strict=True))


def test_the_state_is_that_after_the_last_batch(folder: Path) -> None:
    loader = build(make_config(folder, prefetch=4), seed=9)
    assert {key: loader.state_dict()[key] for key in ("epoch", "index", "seed")} == {"epoch": 0, "index": 0, "seed": 9}
    for number, _ in enumerate(islice(loader, 20), start=1):
        state = loader.state_dict()
        assert (state["epoch"], state["index"]) == divmod(number * 8, loader.rows_per_epoch)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_the_batch_may_grow_at_any_step(folder: Path, prefetch: int) -> None:
    loader = build(make_config(folder, prefetch=prefetch))
    batches = iter(loader)
    rows = [next(batches).rows for _ in range(3)]
    loader.set_batch(128)
    rows += [next(batches).rows for _ in range(2)]
    loader.set_batch(32)
    rows += [next(batches).rows for _ in range(2)]
    assert [len(numbers) for numbers in rows] == [8, 8, 8, 16, 16, 4, 4]
    assert [number for numbers in rows for number in numbers] == list(range(64))
    assert loader.state_dict()["index"] == 64
    assert loader.batches_per_epoch == loader.rows_per_epoch // 4


@pytest.mark.parametrize("layout", ["chunk", "pack"])
@pytest.mark.parametrize("world", [1, 2])
def test_short_rows_are_cuts_of_full_ones(folder: Path, layout: str, world: int) -> None:
    config = make_config(folder, layout=layout, mask_documents=True, prefetch=2, microbatch_tokens=16)
    straight = take(build(config), 6)
    loaders = [build(config, rank=rank, world=world) for rank in range(world)]
    streams = [iter(loader) for loader in loaders]
    for number, full in enumerate(straight):
        for loader in loaders:
            loader.set_length(4 if 1 < number < 5 else 8)
        shares = [next(stream) for stream in streams]
        length = shares[0].tokens_BT.shape[1]
        assert length == (4 if 1 < number < 5 else 8)
        assert torch.equal(torch.tensor(joined(shares)), full.tokens_BT.reshape(-1, length))
        for share in shares:
            assert share.num_rows_step * length == 16
            assert share.documents_BT is not None
            assert set(share.documents_BT[:, 0].tolist()) == {0}
            assert set(share.labels_BT[:, -1].tolist()) == {-100}
    assert loaders[0].state_dict() == loaders[-1].state_dict()
    assert loaders[0].state_dict()["index"] == 48


def test_shapes_that_cannot_be_dealt_are_refused(folder: Path) -> None:
    with pytest.raises(SpecError) as caught:
        build(make_config(folder, batch_tokens=64, microbatch_tokens=32), world=4)
    assert caught.value.code == "shape-conflict"
    assert caught.value.message == "cannot divide a batch of 8 rows between 4 processes in microbatches of 4 rows"
    assert "data.batch_tokens=128" in caught.value.hint
    loader = build(make_config(folder))
    with pytest.raises(SpecError, match=r"data\.batch_tokens 60"):
        loader.set_batch(60)
    with pytest.raises(SpecError, match="to 3"):
        loader.set_length(3)
    assert (loader.batch_tokens, loader.length) == (64, 8)
    with pytest.raises(SpecError, match="bucket"):
        build(make_config(folder, layout="bucket")).set_length(4)


def test_buckets_end_with_their_longest_document(folder: Path) -> None:
    loader = build(make_config(folder, layout="bucket", sequence_length=32, batch_tokens=128))
    widths = Counter(batch.tokens_BT.shape[1] for batch in take(loader, 2 * loader.batches_per_epoch))
    assert set(widths) <= {2, 4, 8, 16, 32}
    assert len(widths) >= 3
    for batch in take(loader, 10):
        longest = max(int((row != PAD).sum()) for row in batch.tokens_BT)
        assert longest <= batch.tokens_BT.shape[1] < 2 * max(longest, 2)


def test_other_data_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    config = make_config(folder)
    state = build(config).state_dict()
    moved = make_folder(tmp_path / "moved", LENGTHS * 4, file_tokens=100)
    build(make_config(moved)).load_state_dict(state)  # the same tokens at another place
    other = make_folder(tmp_path / "other", LENGTHS * 5)
    for changed, words in (
        (make_config(other), f"`data.sources.0` ({other}) changed since the checkpoint: from 109 rows an epoch of "),
        (make_config(folder, layout="pack"), "`data.layout` changed since the checkpoint: from chunk to pack"),
        (make_config(folder, other), f"the checkpoint was trained without `data.sources.1` ({other}): "),
    ):
        with pytest.raises(SpecError) as caught:
            build(changed).load_state_dict(state)
        assert caught.value.code == "tokens-changed"
        assert words in str(caught.value)
    build(make_config(other, allow_changes=True)).load_state_dict(state)


def test_the_seed_of_a_state_wins(folder: Path) -> None:
    config = make_config(folder)
    first = build(config, seed=1)
    expected = take(first, 4)[2:]
    again, state = build(config, seed=2), build(config, seed=1)
    take(state, 2)
    again.load_state_dict(state.state_dict())
    assert all(same(*pair) for pair in zip(expected, take(again, 2), strict=True))


def test_ratios_hold_in_every_epoch(folder: Path, tmp_path: Path) -> None:
    small = make_folder(tmp_path / "small", [9] * 20, first=10_000)
    sources = (SourceConfig(path=(str(folder),), ratio=0.75), SourceConfig(path=(str(small),), ratio=0.25))
    loader = build(make_config(sources=sources, epoch_tokens=800, batch_tokens=800))
    counts: Counter[int] = Counter()
    for batch in take(loader, 4):
        small_rows = [row for row in batch.tokens_BT.tolist() if max(row) > 9_999]
        assert len(small_rows) == 25
        counts.update(max(row) for row in small_rows)
    assert len(counts) == 22
    assert set(counts.values()) <= {4, 5}  # 100 rows of 22: none comes a sixth time before all came five times


def test_waiting_is_counted(folder: Path) -> None:
    loader = build(make_config(folder, prefetch=1))
    take(loader, 3)
    assert loader.wait_s > 0


def test_a_broken_token_reaches_the_one_who_trains(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = build(make_config(folder, prefetch=2))
    monkeypatch.setattr("windlass.train.data.collate.Collator.batch", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        take(loader, 1)
