from __future__ import annotations

from pathlib import Path

import pytest

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.runs.outputs import read_manifest, verify, write_manifest


def make(folder: Path) -> Path:
    out = folder / "out" / "train"
    (out / "deep" / "er").mkdir(parents=True)
    (out / "model.bin").write_bytes(b"weights")
    (out / "deep" / "er" / "log.txt").write_text("done")
    (out / "manifest.json").write_text("the user's own")
    (out / "link").symlink_to("/etc/hostname")
    return out


def test_a_manifest_names_every_file_and_lies_beside_the_folder(tmp_path: Path) -> None:
    out = make(tmp_path)
    manifest = write_manifest(out)
    assert [entry.path for entry in manifest.entries] == ["deep/er/log.txt", "link", "manifest.json", "model.bin"]
    assert (tmp_path / "out" / "train.manifest.json").is_file()
    assert (out / "manifest.json").read_text() == "the user's own"
    assert read_manifest(out) == manifest
    assert verify(out, manifest) == []


def test_links_are_recorded_and_not_followed(tmp_path: Path) -> None:
    entry = next(entry for entry in write_manifest(make(tmp_path)).entries if entry.path == "link")
    assert (entry.link, entry.size) == ("/etc/hostname", 13)


def test_every_kind_of_difference_is_named(tmp_path: Path) -> None:
    out = make(tmp_path)
    manifest = write_manifest(out)
    (out / "model.bin").write_bytes(b"WEIGHTS")
    (out / "deep" / "er" / "log.txt").write_text("done!")
    (out / "manifest.json").unlink()
    (out / "link").unlink()
    (out / "link").symlink_to("/etc/passwd")
    (out / "extra").write_text("")
    assert [str(difference) for difference in verify(out, manifest)] == [
        "deep/er/log.txt: has 5 bytes instead of 4",
        "extra: is new",
        "link: links to /etc/passwd instead of /etc/hostname",
        "manifest.json: missing",
        "model.bin: has other content (sha256)",
    ]


def test_the_digest_depends_on_content_alone(tmp_path: Path) -> None:
    first, second = make(tmp_path / "a"), make(tmp_path / "b")
    assert write_manifest(first).digest == write_manifest(second).digest
    (second / "model.bin").write_bytes(b"WEIGHTS")
    assert write_manifest(first).digest != write_manifest(second).digest


def test_a_manifest_that_is_missing_or_damaged(tmp_path: Path) -> None:
    out = make(tmp_path)
    with pytest.raises(NotFoundError, match=r"out/train has no manifest \(train\.manifest\.json\)"):
        read_manifest(out)
    write_manifest(out)
    path = tmp_path / "out" / "train.manifest.json"
    path.write_text(path.read_text().replace('"size": 7', '"size": 8'))
    with pytest.raises(PreconditionError, match="the digest does not match the entries"):
        read_manifest(out)


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    manifest = write_manifest(make(tmp_path))
    assert [difference.problem for difference in verify(tmp_path / "nowhere", manifest)] == ["missing"] * 4
    with pytest.raises(NotFoundError):
        write_manifest(tmp_path / "nowhere")
