from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from windlass.core.errors import AccessError, PreconditionError, UnreachableError
from windlass.store.fetching import Fetch
from windlass.store.local import LocalStore

CONTENT = bytes(range(256)) * (20 << 10)  # 5 MiB: more than what is read whole
SHA = hashlib.sha256(CONTENT).hexdigest()
STEP = 1 << 20


@dataclass
class FakeBlob:
    """Sends pieces of 1 MiB; each entry of `faults` is raised after one piece of a read."""

    content: bytes = CONTENT
    faults: list[Exception] = field(default_factory=list)
    url: str = "s3://bucket/key"
    tag: str = "etag"
    offsets: list[int] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        return len(CONTENT)

    def read(self, offset: int) -> Iterator[bytes]:
        self.offsets.append(offset)
        for start in range(offset, len(self.content), STEP):
            yield self.content[start : start + STEP]
            if self.faults:
                raise self.faults.pop(0)


def fetch(store: LocalStore, blob: FakeBlob, sha256: str = SHA) -> tuple[str, int]:
    pauses: list[float] = []
    with store.writing() as inbox:
        return Fetch(store=store, inbox=inbox, pause=pauses.append).get(blob, sha256=sha256)


def partials(store: LocalStore) -> list[str]:
    return [path.name for path in (store.root / "partial").iterdir() if path.suffix != ".lock"]


def test_a_cut_transfer_goes_on_where_it_was(store: LocalStore) -> None:
    blob = FakeBlob(faults=[ConnectionResetError("cut"), ConnectionResetError("cut")])
    assert fetch(store, blob) == (SHA, len(CONTENT))
    assert blob.offsets == [0, STEP, 2 * STEP]
    assert store.objects.path(SHA).read_bytes() == CONTENT
    assert partials(store) == []


@pytest.mark.parametrize("sha256", [SHA, ""])
def test_a_later_command_goes_on_where_the_first_ended(store: LocalStore, sha256: str) -> None:
    with pytest.raises(AccessError, match="access to s3://bucket/key denied"):
        fetch(store, FakeBlob(faults=[PermissionError("no")]), sha256)
    assert len(partials(store)) == 1
    assert list(store.objects.walk()) == []
    blob = FakeBlob()
    assert fetch(store, blob, sha256)[0] == SHA
    assert blob.offsets == [STEP]


def test_a_source_that_never_gets_further_is_given_up(store: LocalStore) -> None:
    class Dead(FakeBlob):
        def read(self, offset: int) -> Iterator[bytes]:
            self.offsets.append(offset)
            yield b""
            raise TimeoutError("no answer")

    blob = Dead()
    with pytest.raises(UnreachableError, match=r"failed \(TimeoutError: no answer\)"):
        fetch(store, blob)
    assert len(blob.offsets) == 6


def test_other_bytes_than_expected_are_not_kept(store: LocalStore) -> None:
    with pytest.raises(PreconditionError, match="does not have the expected content") as caught:
        fetch(store, FakeBlob(content=CONTENT[:-1] + b"!"))
    assert caught.value.code == "digest-mismatch"
    assert (partials(store), list(store.objects.walk())) == ([], [])


def test_a_damaged_rest_of_an_earlier_try_costs_one_more_fetch(store: LocalStore) -> None:
    (store.root / "partial").mkdir(parents=True)
    (store.root / "partial" / SHA).write_bytes(b"x" * STEP)
    blob = FakeBlob()
    assert fetch(store, blob)[0] == SHA
    assert blob.offsets == [STEP, 0]


def test_a_rest_that_is_too_long_is_begun_anew(store: LocalStore) -> None:
    (store.root / "partial").mkdir(parents=True)
    (store.root / "partial" / SHA).write_bytes(CONTENT + b"more")
    assert fetch(store, FakeBlob())[0] == SHA


def test_what_is_there_is_not_asked_for(store: LocalStore) -> None:
    fetch(store, FakeBlob())
    blob = FakeBlob()
    assert fetch(store, blob) == (SHA, len(CONTENT))
    assert blob.offsets == []


def test_a_full_disk_here_is_no_fault_of_the_source(store: LocalStore, tmp_path: Path) -> None:
    class Full(FakeBlob):
        def read(self, offset: int) -> Iterator[bytes]:
            yield b""
            raise OSError(28, "No space left on device")

    with pytest.raises(PreconditionError, match="no space left for the store") as caught:
        fetch(store, Full())
    assert caught.value.code == "store-full"
