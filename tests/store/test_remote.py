"""Stores behind URLs, on fsspec's own file systems: in memory, which is like a bucket, and a folder, which is not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.core.errors import NotFoundError, PreconditionError, UnreachableError
from windlass.store.collecting import collect_remote
from windlass.store.local import LocalStore
from windlass.store.remote import RemoteStore

DAY_S = 86_400.0


@pytest.fixture(params=["memory", "file"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteStore]:
    import fsspec

    yield RemoteStore(f"memory://{tmp_path.name}" if request.param == "memory" else f"file://{tmp_path}/remote")
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def other(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "other")


def test_a_version_goes_there_and_comes_back(
    store: LocalStore, other: LocalStore, remote: RemoteStore, data: Path
) -> None:
    version = store.add(data)
    remote.push(store, version.digest, name="d")
    assert (remote.versions(), [alias.name for alias in remote.aliases()]) == ([version.digest], ["d"])
    got = remote.pull(other, remote.resolve("d"), name="mine")
    assert got.entries == version.entries
    assert other.resolve("mine") == version.digest
    assert sorted(e.name for e in other.objects.walk()) == sorted(e.name for e in store.objects.walk())
    assert [key for key in remote.files("") if "incoming" in key] == []


def test_only_what_is_missing_is_sent_and_fetched(
    store: LocalStore, other: LocalStore, remote: RemoteStore, data: Path
) -> None:
    remote.push(store, store.add(data).digest)
    remote.pull(other, store.versions()[0])
    (data / "new").write_text("a new file")
    second = store.add(data)
    moved: list[int] = []
    remote.push(store, second.digest, progress=moved.append)
    assert moved == [len("a new file")]
    moved.clear()
    remote.pull(other, second.digest, progress=moved.append)
    assert moved == [len("a new file")]


def test_a_damaged_object_here_is_not_sent(store: LocalStore, remote: RemoteStore, data: Path) -> None:
    version = store.add(data)
    path = store.open_object(version.entries[0])
    path.chmod(0o644)
    path.write_text("ALPHA")
    with pytest.raises(PreconditionError, match=r"in the store .* changed"):
        remote.push(store, version.digest)
    assert remote.versions() == []


def test_a_damaged_object_there_is_not_taken_and_a_push_does_not_trust_a_torn_one(
    store: LocalStore, other: LocalStore, remote: RemoteStore, data: Path
) -> None:
    version = store.add(data)
    remote.push(store, version.digest)
    key = f"objects/{version.entries[0].sha256[:2]}/{version.entries[0].sha256}"
    remote._put(key, b"ALPHA")
    with pytest.raises(PreconditionError, match="not have the expected content") as caught:
        remote.pull(other, version.digest)
    assert caught.value.code == "digest-mismatch"
    assert other.versions() == []
    remote._put(key, b"AL")
    remote.push(store, version.digest)
    remote.pull(other, version.digest)


def test_a_damaged_manifest_there_is_told_and_mended_by_a_push(
    store: LocalStore, other: LocalStore, remote: RemoteStore, data: Path
) -> None:
    digest = store.add(data).digest
    remote.push(store, digest)
    remote._put(f"versions/{digest}.json", b"{")
    with pytest.raises(PreconditionError, match=r"the manifest of .* is damaged"):
        remote.pull(other, digest)
    remote.push(store, digest)
    remote.pull(other, digest)


def test_what_is_not_there_is_named(remote: RemoteStore, other: LocalStore) -> None:
    for ref in ("corpus", "ab" * 32):
        with pytest.raises(NotFoundError) as caught:
            remote.pull(other, remote.resolve(ref))
        assert caught.value.code == "data-not-found"


def test_a_collection_there_keeps_names_pins_and_what_is_young(
    store: LocalStore, other: LocalStore, remote: RemoteStore, data: Path
) -> None:
    digests = []
    for text in ("one", "two", "three"):
        (data / "a.txt").write_text(text)
        digests.append(store.add(data).digest)
        remote.push(store, digests[-1], name="named" if text == "one" else "")
    now = time.time()
    assert collect_remote(remote, pinned={}, now=now).versions == ()
    later = now + 8 * DAY_S
    dry = collect_remote(remote, pinned={digests[1]: "run"}, now=later, is_dry=True)
    assert (dry.versions, dry.num_objects, dict(dry.kept)) == ((digests[2],), 1, {digests[1]: "run"})
    assert len(remote.versions()) == 3
    assert collect_remote(remote, pinned={digests[1]: "run"}, now=later).num_objects == 1
    assert remote.versions() == sorted(digests[:2])
    for digest in digests[:2]:
        remote.pull(other, digest)


def test_a_disk_that_fails_once_publishes_nothing(
    store: LocalStore, other: LocalStore, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was to become durable with it is lost, though everything after it goes well."""
    digest = store.add(data).digest
    remote = RemoteStore(f"file://{tmp_path}/remote", pause=lambda seconds: None)
    faults = [OSError(5, "Input/output error")]

    def failing(paths: list[str], folder: Path) -> None:
        if faults:
            raise faults.pop()

    monkeypatch.setattr("windlass.store.objects._BATCH_FILES", 1)
    monkeypatch.setattr("windlass.store.objects._bring_to_disk", failing)
    with pytest.raises(UnreachableError, match="Input/output"):
        remote.push(store, digest)
    assert remote.versions() == []
    remote.push(store, digest)
    faults.append(OSError(5, "Input/output error"))
    with pytest.raises(OSError, match="Input/output"):
        remote.pull(other, digest)
    assert other.versions() == []
    assert remote.pull(other, digest).digest == digest
    assert all(other.verify(entry).exists() for entry in store.read(digest).entries if entry.mode != "l")


def test_another_homes_store_can_be_pulled_from(store: LocalStore, other: LocalStore, data: Path) -> None:
    """Its executable files are objects of their own there."""
    version = store.add(data, name="d")
    remote = RemoteStore(f"file://{store.root}")
    assert remote.pull(other, remote.resolve("d")).digest == version.digest
    run = next(entry for entry in version.entries if entry.path == "sub/run")
    assert other.verify(run).stat().st_mode & 0o777 == 0o555
    single = store.add(data / "sub/run")
    (store.objects.path(run.sha256)).unlink()
    remote.pull(LocalStore(other.root.with_name("third")), single.digest)


@pytest.mark.parametrize("url", ["{}", "file://{}", "local://{}"])
def test_a_folder_however_it_is_written_gets_and_gives_each_object_in_one_pass(
    url: str, store: LocalStore, other: LocalStore, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = RemoteStore(url.format(tmp_path / "remote"))
    monkeypatch.setattr(remote, "_all", None)
    monkeypatch.setattr("windlass.store.remote.Fetch.get", None)
    digest = remote.push(store, store.add(data).digest).digest
    assert remote.pull(other, digest).digest == digest
    assert list((tmp_path / "remote/incoming").iterdir()) == []


def test_a_write_that_fails_leaves_nothing_half(store: LocalStore, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On file systems that are neither here nor a bucket a file is moved into place."""
    remote = RemoteStore("memory://elsewhere", pause=lambda seconds: None)
    remote._is_bucket = False
    monkeypatch.setattr(remote._system, "mv", lambda *paths: 1 / 0)
    with pytest.raises(UnreachableError, match="division"):
        remote.push(store, store.add(data).digest)
    assert remote.unfinished() == {}


def test_what_a_killed_push_left_goes_when_it_is_old(store: LocalStore, data: Path, tmp_path: Path) -> None:
    remote = RemoteStore(f"file://{tmp_path}/remote")
    digest = remote.push(store, store.add(data).digest, name="d").digest
    left = [
        tmp_path / "remote" / name for name in ("incoming/47.ab/1", "incoming-47-ab", f"versions/.{digest}.json.1.tmp")
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    now = time.time()
    assert collect_remote(remote, pinned={}, now=now).num_objects == 0
    assert collect_remote(remote, pinned={}, now=now + 8 * DAY_S, is_dry=True).num_objects == 3
    assert all(path.exists() for path in left)
    assert collect_remote(remote, pinned={}, now=now + 8 * DAY_S).versions == ()
    assert not any(path.exists() for path in left)
    assert remote.versions() == [digest]


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_bucket_without_slashes_is_a_bucket_and_no_folder(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(url: str, **options: object) -> None:
        asked.append(url)
        raise ValueError

    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    with pytest.raises(PreconditionError, match=f"`{scheme}:` needs a library"):
        RemoteStore(f"{scheme}:bucket/store/")
    assert asked == [f"{scheme}://bucket/store"]


def test_a_lacking_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(PreconditionError, match="`s3:` needs a library that is not installed") as caught:
        RemoteStore("s3://bucket/store")
    assert caught.value.hint == "pip install 'windlass[data]'"
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(PreconditionError, match="`memory:` needs a library that is not installed"):
        RemoteStore("memory://store")


@pytest.mark.parametrize("prefix", ["", "file://"])
def test_a_plain_folder_needs_no_library(
    store: LocalStore, other: LocalStore, data: Path, tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "fsspec", None)
    remote = RemoteStore(f"{prefix}{tmp_path}/remote")
    assert (remote.versions(), remote.files(""), remote.has("0" * 64)) == ([], {}, False)
    version = store.add(data)
    remote.push(store, version.digest, name="d")
    assert (remote.versions(), [alias.name for alias in remote.aliases()]) == ([version.digest], ["d"])
    assert remote.pull(other, remote.resolve("d")).entries == version.entries
    remote.forget(version.digest)
    remote.delete(["objects/00/missing"])
    swept = collect_remote(remote, pinned={}, now=time.time() + 9 * DAY_S, older_than_s=0)
    assert (swept.versions, swept.num_objects) == ((), 2)
    assert [key for key in remote.files("") if not key.endswith("/")] == []
