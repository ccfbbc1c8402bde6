from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from windlass.store.objects import Inbox, Objects
from windlass.store.reading import PIECE_BYTES, digest_of, in_batches

SIZES = (0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES)


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(Objects(tmp_path / "objects"), tmp_path / "incoming")


@pytest.mark.parametrize("size", SIZES)
def test_files_of_every_size_come_in_as_they_are(size: int, inbox: Inbox, tmp_path: Path) -> None:
    source, content = tmp_path / "source", os.urandom(size)
    source.write_bytes(content)
    sha256 = hashlib.sha256(content).hexdigest()
    assert digest_of(str(source)) == (sha256, size)
    objects = Objects(tmp_path / "objects")
    with inbox:
        for mode in (0o644, 0o755, 0o644):  # the first one may try to share blocks
            assert inbox.copy(source, mode) == sha256
    for is_executable, mode in ((False, 0o444), (True, 0o555)):
        path = objects.path(sha256, is_executable=is_executable)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == mode


def test_the_umask_takes_no_permission_away(inbox: Inbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_text("text")
    before = os.umask(0o077)
    try:
        with inbox:
            sha256 = inbox.copy(source, 0o600)
    finally:
        os.umask(before)
    assert Objects(tmp_path / "objects").path(sha256).stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize("size", SIZES)
def test_nothing_comes_in_that_was_not_expected(size: int, inbox: Inbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * size)
    with inbox:
        for _ in range(2):
            assert inbox.copy(source, 0o644, expected="0" * 64) == digest_of(str(source))[0]
    assert list(Objects(tmp_path / "objects").walk()) == []


def test_a_write_that_failed_can_be_tried_again(inbox: Inbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that was only announced must not make the second try believe that it comes."""
    source = tmp_path / "source"
    source.write_text("text")

    def fails(*_arguments: object) -> None:
        raise OSError(5, "Input/output error")

    with inbox:
        inbox._can_clone = False
        with monkeypatch.context() as broken:
            broken.setattr("windlass.store.objects.write_all", fails)
            with pytest.raises(OSError, match="Input/output"):
                inbox.copy(source, 0o644)
        sha256 = inbox.copy(source, 0o644)
    assert Objects(tmp_path / "objects").path(sha256).read_text() == "text"


def test_batches_keep_the_order_and_name_the_first_error() -> None:
    assert in_batches(range(1000), lambda item: 1 << 20, lambda item: item * 2) == [item * 2 for item in range(1000)]
    assert in_batches([], lambda item: 1, lambda item: item) == []

    def do(item: int) -> None:
        if item >= 500:
            raise ValueError(str(item))

    with pytest.raises(ValueError, match="500"):
        in_batches(range(1000), lambda item: 1, do)


def test_much_is_shared_among_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    both = threading.Barrier(2, timeout=120)
    in_batches([1, 2], lambda item: 1 << 30, lambda item: both.wait())
