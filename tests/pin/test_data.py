from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.pin.data.pinning import check_data, pin_data

OLD_S = 1_500_000_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("alpha")
    (folder / "sub/b.txt").write_text("beta")
    (folder / "sub/run").write_text("#!/bin/sh")
    (folder / "sub/run").chmod(0o755)
    (folder / "sub/back").symlink_to("../a.txt")
    return folder


def test_a_file_is_its_sha256(data: Path) -> None:
    pin = pin_data("d", "file:data/a.txt", data.parent)
    assert (pin.digest, pin.size_bytes, pin.kind, pin.num_files) == (hashlib.sha256(b"alpha").hexdigest(), 5, "file", 1)
    assert pin_data("d", f"file:{data}/a.txt", Path("/")).digest == pin.digest
    assert pin_data("d", f"file://{data}/a.txt", Path("/")).digest == pin.digest


def test_a_folder_is_its_sorted_manifest(data: Path, tmp_path: Path) -> None:
    pin = pin_data("d", "file:data", tmp_path)
    lines = [
        f"- 5 {hashlib.sha256(b'alpha').hexdigest()} a.txt",
        f"- 4 {hashlib.sha256(b'beta').hexdigest()} sub/b.txt",
        f"l 8 {hashlib.sha256(b'../a.txt').hexdigest()} sub/back",
        f"x 9 {hashlib.sha256(b'#!/bin/sh').hexdigest()} sub/run",
    ]
    assert pin.digest == hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()
    assert (pin.kind, pin.num_files, pin.size_bytes) == ("folder", 4, 26)


def test_a_source_that_is_a_link_itself_is_followed(data: Path, tmp_path: Path) -> None:
    (tmp_path / "scratch").symlink_to(data)
    assert pin_data("d", "file:scratch", tmp_path).digest == pin_data("d", "file:data", tmp_path).digest


@given(st.dictionaries(st.text('abc\u00fc \n"', min_size=1, max_size=4), st.binary(max_size=9), max_size=5))
def test_digests_are_equal_exactly_when_contents_are(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]
) -> None:
    first, second = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    for name, content in files.items():
        (first / name).write_bytes(content)
    for name, content in reversed(files.items()):
        (second / name).write_bytes(content)
    one, two = (pin_data("d", "file:.", folder) for folder in (first, second))
    assert one == two
    (second / "extra").touch()
    assert pin_data("d", "file:.", second).digest != one.digest


def make_old(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            os.utime(Path(root) / name, (OLD_S, OLD_S), follow_symlinks=False)


def test_a_cached_digest_saves_reading(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_old(data)
    # Change times cannot be set back, so the clock is set forward.
    monkeypatch.setattr("windlass.store.scan.time.time_ns", lambda: 4 * 10**18)
    cache = tmp_path / "cache"
    pin = pin_data("d", "file:data", tmp_path, cache=cache)
    read: list[str] = []
    real = hashlib.sha256

    def reading(path: str) -> str:
        read.append(Path(path).name)
        return real(Path(path).read_bytes()).hexdigest()

    monkeypatch.setattr("windlass.store.scan.sha256_of", reading)
    assert pin_data("d", "file:data", tmp_path, cache=cache) == pin
    assert read == []
    (data / "a.txt").write_text("ALPHA")
    os.utime(data / "a.txt", (OLD_S, OLD_S))
    # Same size, same time: the change time still gives it away.
    assert pin_data("d", "file:data", tmp_path, cache=cache).digest != pin.digest
    assert read == ["a.txt"]


def test_a_file_changed_just_now_is_not_trusted(data: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = pin_data("d", "file:data/a.txt", tmp_path, cache=cache)
    assert not (cache / "digests").exists()
    (data / "a.txt").write_text("ALPHA")
    assert pin_data("d", "file:data/a.txt", tmp_path, cache=cache).digest != first.digest


def test_a_broken_cache_is_no_cache(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.store.scan.time.time_ns", lambda: 4 * 10**18)
    cache = tmp_path / "cache"
    pin = pin_data("d", "file:data", tmp_path, cache=cache)
    (stored,) = (cache / "digests").iterdir()
    for broken in ("", "[]", '{"a.txt": 1}', '{"a.txt": []}'):
        stored.write_text(broken)
        assert pin_data("d", "file:data", tmp_path, cache=cache) == pin


def test_unchanged_data_passes(data: Path, tmp_path: Path) -> None:
    for source in ("file:data", "file:data/a.txt"):
        check_data(pin_data("d", source, tmp_path), tmp_path)


def test_what_changed_is_named(data: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    pin = pin_data("d", "file:data", tmp_path, cache=cache)
    (data / "a.txt").write_text("other")
    (data / "sub/b.txt").unlink()
    (data / "new").touch()
    (data / "sub/run").chmod(0o644)
    with pytest.raises(PreconditionError) as caught:
        check_data(pin, tmp_path, cache=cache)
    assert caught.value.code == "input-changed"
    assert (
        caught.value.message
        == f"data `d` ({data}) differs from what was pinned: a.txt changed, sub/run changed, sub/b.txt is gone, new is new"
    )
    with pytest.raises(PreconditionError, match=r"(?m)4 files, 26 bytes, now 4 files, 22 bytes$"):
        check_data(pin, tmp_path)


def test_a_changed_file_a_changed_kind_and_a_lost_file(data: Path, tmp_path: Path) -> None:
    pin = pin_data("d", "file:data/a.txt", tmp_path)
    (data / "a.txt").write_text("longer than it was")
    with pytest.raises(
        PreconditionError, match=r"(?m)5 bytes, sha256 8ed3f6ad685b..., now 18 bytes, sha256 [0-9a-f]{12}...$"
    ):
        check_data(pin, tmp_path)
    (data / "a.txt").unlink()
    with pytest.raises(NotFoundError):
        check_data(pin, tmp_path)
    (data / "a.txt").mkdir()
    with pytest.raises(PreconditionError, match=r"(?m)it was a file and is a folder$"):
        check_data(pin, tmp_path)
