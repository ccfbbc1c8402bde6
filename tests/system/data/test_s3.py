"""A real S3 server: stores in a bucket, sources from it, and everything that goes wrong on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lab.s3 import FaultyProxy, Rule, cut_after, flip, slow, status
from windlass.core.errors import AccessError, NotFoundError, PreconditionError, UnreachableError
from windlass.pin.data.pinned import DataPlaces
from windlass.pin.data.pinning import pin_data, place_data
from windlass.store.local import LocalStore
from windlass.store.remote import RemoteStore
from windlass.store.remote_files import file_system

pytestmark = pytest.mark.system

BIG_BYTES = 3 << 20


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store")


@pytest.fixture
def other(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "other")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    (folder / "big").write_bytes(os.urandom(BIG_BYTES))
    for number in range(4):
        (folder / f"sub/{number}").write_text(f"small {number}")
    return folder


@pytest.fixture(autouse=True)
def _hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.store.fetching._FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("windlass.store.fetching._SMALL_BYTES", 1 << 16)
    monkeypatch.setattr("windlass.store.remote_files._BUCKET_PIECE_BYTES", 2 << 20)
    monkeypatch.setattr("windlass.store.remote._NUM_WORKERS", 4)


def remote(url: str) -> RemoteStore:
    return RemoteStore(f"{url}/store", pause=lambda seconds: None)


def gets(proxy: FaultyProxy, of: str) -> list[str]:
    return [each.headers.get("Range", "") for each in proxy.seen if each.method == "GET" and of in each.path]


def test_a_version_goes_to_a_bucket_and_comes_back(
    bucket: str, store: LocalStore, other: LocalStore, data: Path
) -> None:
    version = store.add(data)
    remote(bucket).push(store, version.digest, name="d")
    there = remote(bucket)
    assert there.pull(other, there.resolve("d")).entries == version.entries
    assert all(other.verify(entry).exists() for entry in version.entries)


def test_a_pull_that_is_cut_goes_on_where_it_was(
    bucket: str, proxy: FaultyProxy, store: LocalStore, other: LocalStore, data: Path
) -> None:
    version = store.add(data)
    big = next(entry for entry in version.entries if entry.path == "big").sha256
    remote(bucket).push(store, version.digest)
    proxy.seen.clear()
    proxy.fault = status(403, of=big)
    with pytest.raises(AccessError, match=r"access to .* denied"):
        remote(bucket).pull(other, version.digest)
    assert other.versions() == []
    proxy.fault = _second_piece_refused(big)
    with pytest.raises(UnreachableError):
        remote(bucket).pull(other, version.digest)
    assert (other.root / "partial" / big).stat().st_size == 2 << 20
    proxy.fault = lambda request: None
    proxy.seen.clear()
    remote(bucket).pull(other, version.digest)
    assert gets(proxy, "/objects/") == [f"bytes={2 << 20}-{BIG_BYTES - 1}"]


def _second_piece_refused(of: str) -> Rule:
    refuse = status(500, of=of)
    return lambda request: None if request.headers.get("Range", "").startswith("bytes=0-") else refuse(request)


@pytest.mark.parametrize(
    "rule",
    [
        status(500, times=2),
        status(503, times=3),
        cut_after(1000, times=2, of="/objects/"),
        flip(times=1, of="/objects/"),
    ],
    ids=["500", "503", "cut", "flipped"],
)
def test_faults_that_pass_cost_only_time(
    rule: Rule, bucket: str, proxy: FaultyProxy, store: LocalStore, other: LocalStore, data: Path
) -> None:
    version = store.add(data)
    remote(bucket).push(store, version.digest)
    proxy.fault = rule
    remote(bucket).pull(other, version.digest)
    assert all(other.verify(entry).exists() for entry in version.entries)


def test_a_slow_server_is_no_fault(
    bucket: str, proxy: FaultyProxy, store: LocalStore, other: LocalStore, data: Path
) -> None:
    version = store.add(data / "sub")
    remote(bucket).push(store, version.digest)
    proxy.fault = slow(0.05)
    remote(bucket).pull(other, version.digest)


def test_a_push_survives_faults_and_shows_nothing_half(
    bucket: str, proxy: FaultyProxy, store: LocalStore, other: LocalStore, data: Path
) -> None:
    version = store.add(data / "sub")
    proxy.fault = status(500, of="/objects/")
    with pytest.raises(UnreachableError, match="HTTP 500"):
        remote(bucket).push(store, version.digest)
    proxy.fault = lambda request: None
    assert remote(bucket).versions() == []
    proxy.fault = status(500, times=2)
    remote(bucket).push(store, version.digest)
    remote(bucket).pull(other, version.digest)


def test_other_bytes_in_the_bucket_are_refused(bucket: str, store: LocalStore, other: LocalStore, data: Path) -> None:
    version = store.add(data)
    there = remote(bucket)
    there.push(store, version.digest)
    entry = version.entries[0]
    there._put(f"objects/{entry.sha256[:2]}/{entry.sha256}", os.urandom(entry.size_bytes))
    with pytest.raises(PreconditionError, match="does not have the expected content") as caught:
        there.pull(other, version.digest)
    assert caught.value.code == "digest-mismatch"
    assert other.versions() == []


@pytest.mark.parametrize(("code", "error"), [(401, AccessError), (403, AccessError), (500, UnreachableError)])
def test_refusals_are_told_apart(
    code: int, error: type[Exception], bucket: str, proxy: FaultyProxy, other: LocalStore
) -> None:
    proxy.fault = status(code)
    with pytest.raises(error, match=f"HTTP {code}"):
        remote(bucket).pull(other, "ab" * 32)


def test_no_bucket_is_nothing_there(bucket: str, other: LocalStore) -> None:
    with pytest.raises(NotFoundError):
        remote("s3://no-such-bucket").pull(other, "ab" * 32)


# --- sources ------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(bucket: str, data: Path) -> str:
    """The folder `data` below a prefix of the bucket."""
    system, path = file_system(f"{bucket}/raw")
    for file in data.rglob("*"):
        if file.is_file():
            system.put_file(str(file), f"{path}/{file.relative_to(data)}")
    return f"{bucket}/raw"


@pytest.fixture
def places(home: Path) -> DataPlaces:
    return DataPlaces.of(home)


def test_a_prefix_is_a_folder_with_the_digest_of_its_files(source: str, places: DataPlaces, data: Path) -> None:
    pin = pin_data("d", f"{source}/", data, places=places)
    assert pin.digest == pin_data("d", f"file:{data}", data).digest
    assert pin_data("d", source.replace("://", ":"), data, places=places).digest == pin.digest
    path = place_data(pin, data, places)
    assert (path.name, (path / "sub/3").read_text()) == ("raw", "small 3")
    single = pin_data("d", f"{source}/sub/3", data, places=places)
    assert (single.kind, place_data(single, data, places).read_text()) == ("file", "small 3")


def test_what_did_not_change_is_not_fetched_again(
    source: str, proxy: FaultyProxy, places: DataPlaces, data: Path
) -> None:
    first = pin_data("d", source, data, places=places)
    proxy.seen.clear()
    assert pin_data("d", source, data, places=places) == first
    assert gets(proxy, "/raw/") == []
    system, path = file_system(source)
    system.pipe_file(f"{path}/sub/3", b"changed")
    proxy.seen.clear()
    assert pin_data("d", source, data, places=places).digest != first.digest
    assert len(gets(proxy, "/raw/")) == 1


def test_a_stated_digest_is_held_and_found_without_asking(
    source: str, proxy: FaultyProxy, places: DataPlaces, data: Path
) -> None:
    digest = pin_data("d", f"file:{data}", data).digest
    with pytest.raises(PreconditionError, match=f"has the digest {digest}, not {'ab' * 32}") as caught:
        pin_data("d", f"{source}#sha256={'ab' * 32}", data, places=places)
    assert caught.value.code == "digest-mismatch"
    assert pin_data("d", f"{source}#sha256={digest}", data, places=places).digest == digest
    proxy.seen.clear()
    pin_data("d", f"{source}#sha256={digest}", data, places=places)
    assert proxy.seen == []


def test_a_lost_store_is_filled_again_from_the_source(source: str, places: DataPlaces, data: Path) -> None:
    pin = pin_data("d", source, data, places=places)
    places.store.forget(pin.digest)
    assert (place_data(pin, data, places) / "sub/1").read_text() == "small 1"
    places.store.forget(pin.digest)
    system, path = file_system(source)
    system.pipe_file(f"{path}/sub/1", b"changed")
    with pytest.raises(PreconditionError, match="differs from what was pinned") as caught:
        place_data(pin, data, places)
    assert caught.value.code == "input-changed"


def test_an_empty_prefix_is_nothing(source: str, places: DataPlaces, data: Path) -> None:
    with pytest.raises(NotFoundError, match=r"data `d`: nothing at s3://.*/other"):
        pin_data("d", source.replace("/raw", "/other"), data, places=places)
