"""Checkpoints are kept whole or not at all, here and in a bucket; torn ones are never loaded."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.record.manifest import FOLDER_MANIFEST
from windlass.tune.storage import TrialCheckpointStore, delete, fetch, local_folder
from windlass.tune.trainable.checkpoint import Checkpoint


def write_two(folder: str) -> None:
    Path(folder, "deep").mkdir()
    Path(folder, "a.txt").write_text("a")
    Path(folder, "deep", "b.bin").write_bytes(b"b" * 1000)


@pytest.fixture(params=["folder", "url"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "checkpoints")
        return
    fsspec = pytest.importorskip("fsspec")
    yield "memory://bucket/checkpoints"
    with contextlib.suppress(FileNotFoundError):
        fsspec.filesystem("memory").rm("/bucket", recursive=True)


def test_what_was_kept_is_loaded(root: str, tmp_path: Path) -> None:
    path = TrialCheckpointStore(root).keep("00003", 7, 2, write_two)
    assert path == f"{root}/00003/000007-2"
    with local_folder(path) as folder:
        assert Path(folder, "a.txt").read_text() == "a"
        assert Path(folder, "deep", "b.bin").stat().st_size == 1000
    fetch(path, tmp_path / "copy")
    assert (tmp_path / "copy" / "a.txt").read_text() == "a"
    with Checkpoint(path).as_directory() as folder:
        assert Path(folder, "a.txt").read_text() == "a"


def test_a_second_keep_replaces_the_first(root: str) -> None:
    store = TrialCheckpointStore(root)
    store.keep("00003", 7, 2, write_two)
    path = store.keep("00003", 7, 2, lambda folder: Path(folder, "c").touch())
    with local_folder(path) as folder:
        assert [name for name in sorted(os.listdir(folder)) if name != FOLDER_MANIFEST] == ["c"]


def test_a_failed_write_leaves_nothing(root: str, tmp_path: Path) -> None:
    def fail(folder: str) -> None:
        write_two(folder)
        raise OSError("no room")

    store = TrialCheckpointStore(root)
    with pytest.raises(OSError, match="no room"):
        store.keep("00003", 7, 1, fail)
    with pytest.raises(NotFoundError), local_folder(f"{root}/00003/000007-1"):
        pass
    if not root.startswith("memory"):
        assert os.listdir(tmp_path / "checkpoints" / "00003") == []


def damage_local(path: str, how: str) -> None:
    file = Path(path, "deep", "b.bin")
    if how == "shorter":
        file.write_bytes(b"b" * 999)
    elif how == "changed":
        file.write_bytes(b"b" * 999 + b"c")
    elif how == "missing":
        file.unlink()
    else:
        Path(path, FOLDER_MANIFEST).unlink()


@pytest.mark.parametrize("how", ["shorter", "changed", "missing", "uncommitted"])
def test_a_torn_one_is_refused(tmp_path: Path, how: str) -> None:
    path = TrialCheckpointStore(str(tmp_path)).keep("00003", 7, 2, write_two)
    damage_local(path, how)
    with pytest.raises(PreconditionError) as refused, local_folder(path):
        pass
    assert refused.value.code == "checkpoint-damaged"
    assert path in refused.value.message


@pytest.mark.parametrize("name", ["deep/b.bin", FOLDER_MANIFEST])
def test_a_torn_one_in_a_bucket_is_refused(name: str) -> None:
    fsspec = pytest.importorskip("fsspec")
    path = TrialCheckpointStore("memory://torn/c").keep("00003", 7, 2, write_two)
    fsspec.filesystem("memory").rm_file(f"/torn/c/00003/000007-2/{name}")
    with pytest.raises((PreconditionError, NotFoundError)) as refused, local_folder(path):
        pass
    assert refused.value.code == ("no-checkpoint" if name == FOLDER_MANIFEST else "checkpoint-damaged")


def test_delete_removes_and_may_be_repeated(root: str) -> None:
    path = TrialCheckpointStore(root).keep("00003", 7, 2, write_two)
    for _ in range(2):
        delete(path)
    with pytest.raises(NotFoundError) as refused, local_folder(path):
        pass
    assert refused.value.code == "no-checkpoint"


def test_folders_that_were_never_reported_are_checkpoints_too(tmp_path: Path) -> None:
    write_two(str(tmp_path))
    checkpoint = Checkpoint.from_directory(tmp_path)
    checkpoint.set_metadata({"epoch": 1})
    checkpoint.update_metadata({"loss": 0.5})
    assert checkpoint.get_metadata() == {"epoch": 1, "loss": 0.5}
    copied = Checkpoint(checkpoint.to_directory())
    assert copied.get_metadata() == {"epoch": 1, "loss": 0.5}
    assert copied != checkpoint
    assert Checkpoint(copied.path) == copied
