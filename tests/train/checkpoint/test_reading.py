"""Any box of any tensor from pieces cut in any way, with small blocks and small reads."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.record.manifest import Manifest
from windlass.train.checkpoint import layout, reading, shards
from windlass.train.checkpoint.files import LocalFolder
from windlass.train.checkpoint.layout import Box, Layout, Piece, TensorEntry, overlap
from windlass.train.checkpoint.reading import CheckpointReader
from windlass.train.checkpoint.shards import StagedTensor, write_shard
from windlass.train.errors import CheckpointError


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (layout, reading, shards):
        monkeypatch.setattr(module, "BLOCK_BYTES", 64)
    monkeypatch.setattr(reading, "MAX_READ_BYTES", 96)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(1, 9), max_size=3)))


@st.composite
def sides(draw: st.DrawFn, size: int) -> list[tuple[int, int]]:
    """A side cut into parts: (offset, size) of each."""
    marks = sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=2))})
    return [(begin, end - begin) for begin, end in itertools.pairwise(marks)]


@st.composite
def grids(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Boxes that fill a shape."""
    parts = [draw(sides(size)) for size in shape]
    return [
        Box(tuple(offset for offset, _ in cell), tuple(size for _, size in cell)) for cell in itertools.product(*parts)
    ]


def cut(tensor: torch.Tensor, box: Box) -> torch.Tensor:
    slices = tuple(slice(offset, offset + size) for offset, size in zip(box.offsets, box.shape, strict=True))
    return tensor[slices].contiguous()


def written(folder: Path, tensor: torch.Tensor, boxes: list[Box], dtype: str) -> tuple[CheckpointReader, TensorEntry]:
    files = LocalFolder(folder)
    shard = write_shard(
        files, "x.safetensors", [StagedTensor(name="x", box=box, tensor=cut(tensor, box)) for box in boxes]
    )
    pieces = tuple(
        Piece(box=box, file="x.safetensors", start=start) for box, start in zip(boxes, shard.starts, strict=True)
    )
    entry = TensorEntry(dtype=dtype, shape=tuple(tensor.shape), pieces=pieces)
    plan = Layout(world=1, tensors={"model": {"x": entry}}, files={"x.safetensors": shard.sums})
    assert Layout.from_json(plan.to_json()) == plan
    return CheckpointReader(files, Manifest((shard.entry,)), plan), entry


@settings(max_examples=60)
@given(data=st.data())
def test_any_box_from_any_pieces(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    shape = data.draw(shapes())
    dtype, name = data.draw(
        st.sampled_from([(torch.float32, "F32"), (torch.bfloat16, "BF16"), (torch.uint8, "U8"), (torch.int64, "I64")])
    )
    tensor = torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape).to(dtype)
    reader, entry = written(tmp_path_factory.mktemp("pieces"), tensor, data.draw(grids(shape)), name)
    wanted = data.draw(grids(shape))
    targets = [torch.zeros(box.shape, dtype=dtype) for box in wanted]
    reader.fill_all((entry, box, target) for box, target in zip(wanted, targets, strict=True))
    for box, target in zip(wanted, targets, strict=True):
        assert torch.equal(target, cut(tensor, box))


def test_only_the_blocks_of_a_box_are_read(tmp_path: Path) -> None:
    tensor = torch.arange(4096.0).reshape(512, 8)
    reader, entry = written(tmp_path, tensor, [Box((0, 0), (512, 8))], "F32")
    seen: list[int] = []

    class Watched(LocalFolder):
        def read_into(self, name: str, start: int, buffer: memoryview) -> int:
            seen.append(len(buffer))
            return super().read_into(name, start, buffer)

    reader.files = Watched(tmp_path)
    target = torch.zeros(2, 8)
    reader.fill(entry, Box((100, 0), (2, 8)), target)
    assert torch.equal(target, tensor[100:102])
    assert seen == [64]  # two rows of 32 bytes: one block


def test_a_box_that_the_pieces_do_not_fill_is_refused(tmp_path: Path) -> None:
    tensor = torch.arange(8.0)
    reader, entry = written(tmp_path, tensor, [Box((0,), (3,)), Box((5,), (3,))], "F32")
    with pytest.raises(CheckpointError, match="its pieces contain 6 of 8 elements"):
        reader.fill(entry, Box((0,), (8,)), torch.zeros(8))


@given(data=st.data())
def test_overlap_is_what_both_have(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    left, right = (data.draw(st.sampled_from(data.draw(grids(shape)))) for _ in range(2))
    marks = [torch.zeros(shape, dtype=torch.int64) for _ in range(2)]
    for mark, box in zip(marks, (left, right), strict=True):
        mark[tuple(slice(o, o + n) for o, n in zip(box.offsets, box.shape, strict=True))] = 1
    both = overlap(left, right)
    assert int((marks[0] * marks[1]).sum()) == (both.num_elements if both else 0)
