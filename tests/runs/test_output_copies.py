from __future__ import annotations

import json
from pathlib import Path

import pytest

from windlass.core.errors import AccessError, PreconditionError
from windlass.record.manifest import Manifest, build_manifest, read_manifest
from windlass.runs import output_copies
from windlass.runs.output_copies import copy_folder, send_folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "b.bin").write_bytes(b"b" * 3_000_000)
    (folder / "a.txt").write_text("a")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "latest").symlink_to("a.txt")
    return folder


@pytest.fixture
def manifest(source: Path) -> Manifest:
    return build_manifest(source, is_beside=True)


def test_a_copy_is_as_the_manifest_says(tmp_path: Path, source: Path, manifest: Manifest) -> None:
    target = tmp_path / "x" / "train"
    copy_folder(source, manifest, target)
    assert build_manifest(target, is_beside=True).digest == manifest.digest
    assert read_manifest(target, is_beside=True).digest == manifest.digest
    assert (target / "run.sh").stat().st_mode & 0o111
    assert (target / "a.txt").stat().st_ino != (source / "a.txt").stat().st_ino


def test_links_share_the_bytes(tmp_path: Path, source: Path, manifest: Manifest) -> None:
    copy_folder(source, manifest, tmp_path / "t", is_linked=True)
    assert (tmp_path / "t" / "a.txt").stat().st_ino == (source / "a.txt").stat().st_ino


def test_what_is_there_is_not_copied_again(
    tmp_path: Path, source: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "t"
    copied: list[str] = []
    copy = output_copies._copy

    def failing(path: Path, entry: object, part: Path) -> None:
        if path.name == "run.sh":
            part.write_text("half")
            raise OSError(28, "No space left on device")
        copied.append(path.name)
        copy(path, entry, part)  # type: ignore[arg-type]

    monkeypatch.setattr(output_copies, "_copy", failing)
    with pytest.raises(OSError, match="No space left"):
        copy_folder(source, manifest, target)
    assert not (target / "run.sh").exists()
    assert not (tmp_path / "t.manifest.json").exists()
    assert copied == ["a.txt", "b.bin"]
    copied.clear()
    monkeypatch.setattr(output_copies, "_copy", copy)
    copy_folder(source, manifest, target)
    assert copied == []
    assert build_manifest(target, is_beside=True).digest == manifest.digest


def test_a_changed_file_is_refused_and_not_put_in_place(tmp_path: Path, source: Path, manifest: Manifest) -> None:
    (source / "a.txt").write_text("b")
    for is_linked in (False, True):
        with pytest.raises(PreconditionError) as caught:
            copy_folder(source, manifest, tmp_path / "t", is_linked=is_linked)
        assert caught.value.code == "output-changed"
        assert not (tmp_path / "t" / "a.txt").exists()


def test_nothing_is_overwritten(tmp_path: Path, source: Path, manifest: Manifest) -> None:
    target = tmp_path / "t"
    (target / "deep").mkdir(parents=True)
    (target / "deep" / "b.bin").write_text("mine")
    with pytest.raises(PreconditionError) as caught:
        copy_folder(source, manifest, target)
    assert caught.value.message == f"{target}/deep/b.bin already exists with different content"
    assert (target / "deep" / "b.bin").read_text() == "mine"
    assert not (target / "a.txt").exists()


def test_a_link_in_the_way_is_not_written_through(tmp_path: Path, source: Path, manifest: Manifest) -> None:
    target = tmp_path / "t"
    target.mkdir()
    (target / "a.txt").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("a")
    with pytest.raises(PreconditionError, match="already exists with different content"):
        copy_folder(source, manifest, target)


def test_the_manifest_of_another_output_is_not_replaced(tmp_path: Path, source: Path, manifest: Manifest) -> None:
    (tmp_path / "t.manifest.json").write_text(json.dumps({"files": []}))
    with pytest.raises(PreconditionError, match="belongs to another output"):
        copy_folder(source, manifest, tmp_path / "t")


def test_a_folder_takes_a_push(tmp_path: Path, source: Path, manifest: Manifest) -> None:
    assert send_folder(source, manifest, f"file://{tmp_path}/there", "train") == f"{tmp_path}/there/train"
    assert build_manifest(tmp_path / "there" / "train", is_beside=True).digest == manifest.digest


def test_a_url_takes_a_push_and_goes_on(source: Path, manifest: Manifest) -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")
    system = fsspec.filesystem("memory")
    url = "memory://bucket/results"
    assert send_folder(source, manifest, url, "train") == f"{url}/train"
    assert system.cat_file("/bucket/results/train/deep/b.bin") == b"b" * 3_000_000
    assert not system.exists("/bucket/results/train/latest")
    listing = json.loads(system.cat_file("/bucket/results/train.manifest.json"))
    assert listing["digest"] == manifest.digest
    system.rm_file("/bucket/results/train.manifest.json")
    system.pipe_file("/bucket/results/train/a.txt", b"z")  # wrong, of the right size
    before = system.info("/bucket/results/train/deep/b.bin")["created"]
    send_folder(source, manifest, url, "train")
    assert system.cat_file("/bucket/results/train/a.txt") == b"a"
    assert system.info("/bucket/results/train/deep/b.bin")["created"] == before
    system.rm("/bucket", recursive=True)


def test_a_changed_file_is_not_pushed(source: Path, manifest: Manifest) -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")
    (source / "a.txt").write_text("b")
    with pytest.raises(PreconditionError) as caught:
        send_folder(source, manifest, "memory://other", "train")
    assert caught.value.code == "output-changed"
    assert not fsspec.filesystem("memory").exists("/other/train/a.txt")


def test_an_unknown_scheme_says_what_to_install(source: Path, manifest: Manifest) -> None:
    with pytest.raises(PreconditionError) as caught:
        send_folder(source, manifest, "nosuch://bucket", "train")
    assert caught.value.code == "extra-missing"


def test_a_place_that_refuses_is_told_as_such(
    source: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec = pytest.importorskip("fsspec", reason="needs fsspec: pip install fsspec")

    def refuse(self: object, *words: object, **options: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "put_file", refuse)
    with pytest.raises(AccessError, match=r"access to memory://shut/train/.* denied") as caught:
        send_folder(source, manifest, "memory://shut", "train")
    assert caught.value.code == "remote-forbidden"
