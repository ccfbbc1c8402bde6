"""Large files past the page cache: the same bytes and digests, whatever the file system says to O_DIRECT."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.store import direct_io
from windlass.store.direct_io import CHUNK_BYTES, bypass_cache, copy_large, digest_stored

SIZES = (CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES + 4096, 3 * CHUNK_BYTES - 5)


@pytest.fixture(params=SIZES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(os.urandom(request.param))
    return path


def copied(source: Path, target: Path) -> tuple[str, int]:
    given = os.open(source, os.O_RDONLY)
    made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        bypass_cache(made)
        return copy_large(given, made, source.stat().st_size)
    finally:
        os.close(given)
        os.close(made)


def expected(source: Path) -> tuple[str, int]:
    content = source.read_bytes()
    return hashlib.sha256(content).hexdigest(), len(content)


@pytest.mark.parametrize("is_cached", [True, False])
def test_bytes_and_digest_are_those_of_the_source(
    source: Path, is_cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_io, "_is_cached", lambda descriptor, size_bytes: is_cached)
    assert copied(source, tmp_path / "copy") == expected(source)
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert digest_stored(str(source)) == expected(source)


def test_a_file_system_that_refuses_is_written_through_the_cache(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some take the flag and refuse the first request (overlays), or every one whose size is not theirs."""
    monkeypatch.setattr(direct_io, "_is_cached", lambda descriptor, size_bytes: False)
    for name in ("pwrite", "preadv"):
        monkeypatch.setattr(os, name, _refusing(getattr(os, name)))
    assert copied(source, tmp_path / "copy") == expected(source)
    assert digest_stored(str(source)) == expected(source)
    monkeypatch.undo()
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()


def _refusing(call: Callable[..., int]) -> Callable[..., int]:
    def refuse(descriptor: int, *rest: object) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return call(descriptor, *rest)

    return refuse


def test_one_that_knows_no_flag_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(tmp_path / "file", "wb") as file:
        assert bypass_cache(file.fileno(), is_on=False)
        monkeypatch.setattr(direct_io, "_DIRECT", 0)
        assert not bypass_cache(file.fileno())


def test_a_failing_disk_is_told_and_not_hidden(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        copied(source, tmp_path / "copy")


def test_a_source_that_shrinks_meanwhile_ends_early(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 5)
    given, made = os.open(source, os.O_RDONLY), os.open(tmp_path / "copy", os.O_WRONLY | os.O_CREAT)
    assert copy_large(given, made, CHUNK_BYTES) == (hashlib.sha256(b"x" * 5).hexdigest(), 5)
    os.close(given)
    os.close(made)
    assert (tmp_path / "copy").read_bytes() == b"x" * 5
