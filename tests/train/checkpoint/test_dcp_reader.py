"""Checkpoints of others are read as data; a hostile one does nothing but be refused."""

from __future__ import annotations

import collections
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from windlass.train.checkpoint.dcp_metadata import UnsafeMetadataError, parse_metadata
from windlass.train.checkpoint.dcp_reader import read_dcp
from windlass.train.checkpoint.layout import Box
from windlass.train.errors import CheckpointError

STATE: dict[str, Any] = {
    "model": {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(3, dtype=torch.bfloat16)},
    "optim": {"step": torch.tensor(3.0), "lr": 0.25, "betas": [0.9, 0.95]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dcp")
    dcp.save(STATE, checkpoint_id=str(path), no_dist=True)
    return path


def test_tensors_are_read_whole_and_in_part(folder: Path) -> None:
    found = read_dcp(str(folder))
    assert sorted(found) == ["model.a", "model.b", "optim.step"]
    assert found["model.a"].shape == (3, 4)
    assert torch.equal(found["model.a"].read(), STATE["model"]["a"])
    assert torch.equal(found["model.b"].read(), STATE["model"]["b"])
    assert float(found["optim.step"].read()) == 3.0
    assert torch.equal(found["model.a"].read(Box((1, 1), (2, 2))), STATE["model"]["a"][1:3, 1:3])


def test_what_is_no_tensor_is_read_too(folder: Path) -> None:
    found = read_dcp(str(folder))
    assert {name: found.value(name) for name in found.value_names}["optim.lr"] == 0.25


def test_pieces_as_bare_bytes(tmp_path: Path) -> None:
    values = torch.arange(6.0)
    (tmp_path / "x.bin").write_bytes(values.numpy().tobytes())
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    chunks = [ChunkStorageMetadata(torch.Size([at]), torch.Size([3])) for at in (0, 3)]
    metadata = Metadata(
        {"x": TensorStorageMetadata(TensorProperties(torch.float32), torch.Size([6]), chunks)},
        storage_data={MetadataIndex("x", [at]): _StorageInfo("x.bin", at * 4, 12) for at in (0, 3)},
    )
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))
    assert torch.equal(read_dcp(str(tmp_path))["x"].read(), values)


def test_a_folder_without_metadata_says_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no \.metadata") as caught:
        read_dcp(str(tmp_path))
    assert "model_and_optim" in caught.value.hint


class Calls:
    """Pickles as a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self._call = (function, args)

    def __reduce__(self) -> Any:
        return self._call


def deep(levels: int) -> bytes:
    return b"\x80\x04" + b"(" * levels + b"t" * levels + b"."


def bomb() -> bytes:
    """A tuple of two of a tuple of two of ... as a key: to hash it takes for ever."""
    body = b"\x80\x04)\x94"
    for place in range(60):
        body += b"h" + bytes([place]) + b"h" + bytes([place]) + b"\x86\x94"
    return body + b"}h\x3cK\x01s."


HOSTILE: dict[str, tuple[bytes, str]] = {
    "os.system": (pickle.dumps(Calls(os.system, "touch hostile")), "it names posix.system"),
    "eval": (pickle.dumps(Calls(eval, "1")), r"it names builtins.eval"),
    "protocol 0": (b"cposix\nsystem\n(S'x'\ntR.", "it names posix.system"),
    "dotted": (b"\x80\x04\x8c\x05torch\x8c\x0eSize.__class__\x93.", r"it names torch.Size.__class__"),
    "function of an allowed module": (
        pickle.dumps(Calls(torch.serialization.load, "x")),
        "it names torch.serialization.load",
    ),
    "class called": (
        pickle.dumps(Calls(MetadataIndex, "x")),
        "it calls torch.distributed.checkpoint.metadata.MetadataIndex",
    ),
    "getattr": (pickle.dumps(Calls(getattr, 1, "x")), "it names builtins.getattr"),
    "dtype called": (b"\x80\x04\x8c\x05torch\x8c\x07float32\x93)R.", "found a str instead of a _Global"),
    "inst": (b"(S'x'\niposix\nsystem\n.", "opcode STRING is not allowed"),
    "extension": (b"\x80\x02\x82\x01.", "opcode EXT1 is not allowed"),
    "persistent": (b"Px\n.", "opcode PERSID is not allowed"),
    "huge text": (b"\x80\x04\x8d" + (1 << 60).to_bytes(8, "little") + b"x.", "expected 1152921504606846976 bytes"),
    "huge array": (b"\x80\x05\x96" + (1 << 60).to_bytes(8, "little") + b"x.", "expected 1152921504606846976 bytes"),
    "huge memo": (b"\x80\x04Nr\xff\xff\xff\x7fN.", "invalid pickle|does not have torch's format"),
    "deep": (deep(20_000), "does not have torch's format"),
    "bomb": (bomb(), "a key is a tuple"),
    "short stack": (b"\x80\x04\x86.", "the stack is too short"),
    "empty": (b"", "invalid pickle of metadata"),
    "no end": (b"\x80\x04N", "invalid pickle of metadata"),
    "not a pickle": (b"hello", "invalid pickle of metadata"),
    "a number": (pickle.dumps(1), "does not have torch's format"),
    "ordered": (pickle.dumps(collections.Counter()), "it names collections.Counter"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_metadata_is_refused_and_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    content, problem = HOSTILE[kind]
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match=problem) as caught:
        read_dcp(str(tmp_path))
    assert caught.value.code == "foreign-checkpoint"
    assert os.listdir(tmp_path) == [".metadata"]


def tensor_file(tmp_path: Path, *, file: str, length: int, shape: tuple[int, ...]) -> None:
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    chunk = ChunkStorageMetadata(torch.Size([0] * len(shape)), torch.Size(shape))
    entry = TensorStorageMetadata(TensorProperties(torch.float32), torch.Size(shape), [chunk])
    index = MetadataIndex("x", [0] * len(shape))
    metadata = Metadata({"x": entry}, storage_data={index: _StorageInfo(file, 0, length)})
    (tmp_path / ".metadata").write_bytes(pickle.dumps(metadata))


@pytest.mark.parametrize(
    ("file", "length", "shape", "problem"),
    [
        ("../secret", 64, (2,), r"'\.\./secret' is outside the checkpoint"),
        ("/etc/passwd", 64, (2,), "'/etc/passwd' is outside the checkpoint"),
        ("x.bin", 64, (1 << 40, 1 << 20), r"'x' of shape \[1099511627776, 1048576\] does not match its 64 bytes"),
        ("x.bin", 1 << 50, (2,), "x.bin has 8 bytes; expected at least 1125899906842624"),
        ("y.bin", 8, (2,), "y.bin is missing"),
    ],
)
def test_lies_about_sizes_and_places_are_refused(
    tmp_path: Path, file: str, length: int, shape: tuple[int, ...], problem: str
) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(8))
    tensor_file(tmp_path, file=file, length=length, shape=shape)
    with pytest.raises(CheckpointError, match=problem):
        read_dcp(str(tmp_path))["x"].read()


def test_a_hostile_piece_is_refused(tmp_path: Path) -> None:
    content = pickle.dumps(Calls(os.system, f"touch {tmp_path}/x"), protocol=2)
    (tmp_path / "x.bin").write_bytes(content)
    tensor_file(tmp_path, file="x.bin", length=len(content), shape=(2,))
    with pytest.raises(CheckpointError, match=r"x\.bin at byte 0: "):
        read_dcp(str(tmp_path))["x"].read()
    assert sorted(os.listdir(tmp_path)) == [".metadata", "x.bin"]


def test_a_piece_of_another_shape_is_refused(tmp_path: Path) -> None:
    torch.save(torch.zeros(1).expand(1000), tmp_path / "x.bin")
    tensor_file(tmp_path, file="x.bin", length=(tmp_path / "x.bin").stat().st_size, shape=(2,))
    with pytest.raises(CheckpointError, match=r"a piece in x\.bin is not torch\.float32 \[2\]"):
        read_dcp(str(tmp_path))["x"].read()


def test_everything_that_torch_names_is_known(folder: Path) -> None:
    metadata = Metadata(
        {"b": BytesStorageMetadata()},
        planner_data={"b": ("b", 0)},
        storage_data={},
    )
    assert parse_metadata(pickle.dumps(metadata)).kind == "Metadata"
    for protocol in (2, 3, 4, 5):
        found = pickle.loads((folder / ".metadata").read_bytes())
        assert parse_metadata(pickle.dumps(found, protocol=protocol)).kind == "Metadata"


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_data(content: bytes) -> None:
    try:
        parse_metadata(content)
    except UnsafeMetadataError:
        return
