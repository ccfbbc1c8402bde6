from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path

import pytest

from windlass.core import files
from windlass.core.errors import PreconditionError, WaitTimeoutError
from windlass.core.files import (
    check_locks,
    is_locked,
    lock,
    refresh_folder,
    sha256_file,
    write_atomic,
    write_json,
    write_new,
)
from windlass.core.json_text import read_json


def test_a_file_is_written_whole_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"one", mode=0o600)
    assert path.read_bytes() == b"one"
    assert path.stat().st_mode & 0o777 == 0o600
    write_atomic(path, b"two", is_durable=False)
    assert path.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["file"]


def test_what_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"one")

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"two")
    assert path.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_in_the_way_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"theirs")
    path = tmp_path / "file"
    path.symlink_to(other)
    write_atomic(path, b"ours")
    assert other.read_bytes() == b"theirs"
    assert not path.is_symlink()


def test_durable_means_the_folder_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(files, "fsync_directory", synced.append)
    write_atomic(tmp_path / "a", b"")
    write_atomic(tmp_path / "b", b"", syncs_folder=False)
    write_atomic(tmp_path / "c", b"", is_durable=False)
    assert synced == [tmp_path]


def test_json_is_sorted_and_readable(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_json(path, {"b": [1, 2.5, None], "a": "\u00fc"})
    assert path.read_text() == '{\n "a": "\u00fc",\n "b": [\n  1,\n  2.5,\n  null\n ]\n}\n'
    assert read_json(path) == {"a": "\u00fc", "b": [1, 2.5, None]}


def test_digest_of_a_file_longer_than_one_piece(tmp_path: Path) -> None:
    content = os.urandom((1 << 20) + 17)
    (tmp_path / "file").write_bytes(content)
    assert sha256_file(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_locks_are_seen_and_freed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    with lock(path):
        assert is_locked(path)
    assert not is_locked(path)
    assert path.exists()


def test_a_lock_is_freed_by_an_error_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(KeyError), lock(path):
        raise KeyError
    assert not is_locked(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_lock_that_another_holds_too_long(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with lock(path):
        message = r"another process has held the lock .*/lock for 0.03 s"
        with pytest.raises(WaitTimeoutError, match=message) as caught, lock(path, timeout_s=0.03):
            pytest.fail("it is held")
        assert str(path) in caught.value.hint
    with lock(path, timeout_s=0.0):
        assert is_locked(path)
    assert not is_locked(path)


def test_a_new_file_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "file"
    assert write_new(path, b"one")
    assert not write_new(path, b"two")
    assert path.read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_that_was_made_before_its_call_was_repeated_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def linked_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", linked_twice)
    assert write_new(tmp_path / "file", b"one")
    assert not write_new(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"one"
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_is_changed_and_left_as_it_was(tmp_path: Path) -> None:
    os.utime(tmp_path, (0, 0))
    (tmp_path / ".probe").mkdir()  # left by one that was killed
    refresh_folder(tmp_path, ".probe")
    assert os.listdir(tmp_path) == []
    assert tmp_path.stat().st_mtime > 0


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    path = tmp_path / "lock"
    path.touch()

    def without(*_arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    check_locks(tmp_path)
    monkeypatch.setattr(fcntl, "flock", without)
    for attempt in (
        lambda: check_locks(tmp_path),
        lambda: is_locked(path),
        lambda: lock(path).__enter__(),
        lambda: lock(path, timeout_s=0.01).__enter__(),
    ):
        with pytest.raises(PreconditionError, match=f"the file system of {tmp_path}.* has no file locks") as caught:
            attempt()
        assert caught.value.code == "no-file-locks"
    assert os.listdir(tmp_path) == ["lock"]


def test_another_error_of_a_lock_is_not_called_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(OSError, match="Input/output error"):
        check_locks(tmp_path)
