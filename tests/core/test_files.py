from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from windlass.core import files
from windlass.core.errors import WaitTimeoutError
from windlass.core.files import is_locked, lock, read_json, sha256_file, write_atomic, write_json


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
