from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.record.manifest import (
    build_manifest,
    commit_manifest,
    differences,
    list_entries,
    manifest_path,
    read_manifest,
)


def make(folder: Path) -> Path:
    where = folder / "step-1"
    (where / "a").mkdir(parents=True)
    (where / "a" / "0.bin").write_bytes(b"0" * 1000)
    (where / "b.bin").write_bytes(b"1")
    return where


def test_a_folder_and_its_manifest(tmp_path: Path) -> None:
    where = make(tmp_path)
    manifest = commit_manifest(where, step=7, at=5.0)
    assert [(entry.path, entry.size) for entry in manifest.entries] == [("a/0.bin", 1000), ("b.bin", 1)]
    assert (manifest.step, manifest.at, manifest.num_bytes) == (7, 5.0, 1001)
    assert read_manifest(where) == manifest
    assert differences(where, manifest) == []
    assert json.loads((where / "manifest.json").read_bytes())["digest"] == manifest.digest


def test_committing_again_gives_the_same(tmp_path: Path) -> None:
    where = make(tmp_path)
    assert commit_manifest(where) == commit_manifest(where)


def test_a_file_and_its_manifest(tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_bytes(b"123")
    manifest = commit_manifest(tmp_path / "m.pt", step=1)
    assert manifest_path(tmp_path / "m.pt") == tmp_path / "m.pt.manifest.json"
    assert differences(tmp_path / "m.pt", read_manifest(tmp_path / "m.pt")) == []
    (tmp_path / "m.pt").write_bytes(b"124")
    assert differences(tmp_path / "m.pt", manifest) == [("m.pt", "has other content (sha256)")]
    (tmp_path / "m.pt").unlink()
    assert differences(tmp_path / "m.pt", manifest) == [("m.pt", "missing")]


def test_a_file_of_the_user_is_never_overwritten(tmp_path: Path) -> None:
    where = make(tmp_path)
    (where / "manifest.json").write_text('{"version": 3}')
    with pytest.raises(PreconditionError, match=r"manifest\.json is in the way") as caught:
        commit_manifest(where)
    assert caught.value.code == "already-exists"
    assert (where / "manifest.json").read_text() == '{"version": 3}'
    commit_manifest(where, is_beside=True)


def test_a_torn_manifest_of_ours_is_written_anew(tmp_path: Path) -> None:
    where = make(tmp_path)
    commit_manifest(where)
    (where / "manifest.json").write_bytes((where / "manifest.json").read_bytes()[:50])
    with pytest.raises(PreconditionError, match="is damaged"):
        read_manifest(where)
    assert commit_manifest(where) == read_manifest(where)


def test_every_byte_of_every_file_counts(tmp_path: Path) -> None:
    where = make(tmp_path)
    manifest = commit_manifest(where)
    path = where / "a" / "0.bin"
    for position in (0, 500, 999):
        content = bytearray(b"0" * 1000)
        content[position] ^= 1
        path.write_bytes(bytes(content))
        assert differences(where, manifest) == [("a/0.bin", "has other content (sha256)")]


def test_large_folders_are_read_by_several_threads_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = make(tmp_path)
    expected = build_manifest(where, is_durable=True)
    monkeypatch.setattr("windlass.record.manifest._PARALLEL_BYTES", 1)
    assert build_manifest(where, is_durable=True) == expected


def test_links_pipes_and_names_that_are_no_text(tmp_path: Path) -> None:
    where = make(tmp_path)
    (where / "up").symlink_to("..")
    (where / "broken").symlink_to("nowhere")
    os.mkfifo(where / "pipe")
    odd = os.fsdecode(b"\xff.bin")
    (where / odd).write_bytes(b"1")
    manifest = commit_manifest(where)
    assert [entry.path for entry in manifest.entries] == sorted(["a/0.bin", "b.bin", "broken", "up", odd])
    assert read_manifest(where) == manifest
    assert differences(where, manifest) == []
    (where / "broken").unlink()
    (where / "broken").write_text("nowhere")
    assert differences(where, manifest) == [("broken", "is no longer a link")]


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file or folder"):
        commit_manifest(tmp_path / "nowhere")
    with pytest.raises(NotFoundError, match=r"has no manifest \(manifest\.json\)"):
        read_manifest(make(tmp_path))


def test_a_folder_that_cannot_be_read_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list_entries(tmp_path / "nowhere")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_change_of_a_manifest_goes_unseen(data: st.DataObject) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        where = make(Path(folder))
        manifest = commit_manifest(where, step=3)
        content = bytearray((where / "manifest.json").read_bytes())
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        (where / "manifest.json").write_bytes(bytes(content))
        try:
            found = read_manifest(where)
        except PreconditionError:
            return
        assert found.entries == manifest.entries
