from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.pin.data.pinning import pin_data
from windlass.store.collecting import collect
from windlass.store.local import LocalStore


def objects(store: LocalStore) -> list[str]:
    return sorted(entry.name for entry in store.objects.walk())


def test_a_version_has_the_digest_of_a_pin(store: LocalStore, data: Path) -> None:
    assert store.add(data).digest == pin_data("d", "file:data", data.parent).digest
    assert store.add(data / "a.txt").digest == pin_data("d", "file:data/a.txt", data.parent).digest


def test_equal_bytes_are_kept_once_per_mode(store: LocalStore, data: Path) -> None:
    store.add(data)
    assert len(objects(store)) == 3  # alpha; beta, plain and executable
    assert not os.listdir(store.root / "incoming")
    for entry in store.objects.walk():
        assert entry.stat().st_mode & 0o222 == 0


def test_names_move_and_digests_do_not(store: LocalStore, data: Path) -> None:
    first = store.add(data, name="d")
    (data / "a.txt").write_text("other")
    second = store.add(data, name="d")
    assert store.resolve("d") == second.digest != first.digest
    assert store.versions() == sorted([first.digest, second.digest])
    assert store.read(first.digest).entries == first.entries


def test_a_version_is_found_by_name_digest_and_beginning(store: LocalStore, data: Path) -> None:
    digest = store.add(data, name="d").digest
    assert {store.resolve(text) for text in ("d", "store:d", digest, f"sha256:{digest}", digest[:8])} == {digest}
    with pytest.raises(NotFoundError, match="no data `e`") as caught:
        store.resolve("e")
    assert caught.value.code == "data-not-found"
    assert caught.value.hint == "list data with `windlass data ls`, fetch it with `windlass data pull`"
    with pytest.raises(UsageError, match="invalid name for data"):
        store.set_alias("../x", digest)


def test_a_name_that_points_at_nothing_or_is_damaged_says_so(store: LocalStore, data: Path) -> None:
    version = store.add(data, name="d")
    (store.root / "versions" / f"{version.digest}.json").unlink()
    with pytest.raises(NotFoundError, match=f"the name `d` points at {version.digest[:12]}, which is not in") as caught:
        store.resolve("d")
    assert caught.value.code == "data-not-found"
    (store.root / "aliases/d.json").write_text("{")
    for use in (lambda: store.resolve("d"), store.aliases, lambda: collect(store, pinned={})):
        with pytest.raises(PreconditionError, match=r"the name `d` in the store .* is damaged") as damaged:
            use()
        assert damaged.value.code == "store-damaged"
    store.remove_alias("d")
    assert store.add(data, name="d").digest == version.digest


def test_what_is_known_and_there_is_not_read_again(
    store: LocalStore, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.store.scan.time.time_ns", lambda: 4 * 10**18)
    digest = store.add(data, cache=tmp_path / "digests").digest
    monkeypatch.setattr("windlass.store.objects.Inbox.copy", None)
    assert store.add(data, cache=tmp_path / "digests").digest == digest


def test_a_file_that_changes_while_it_is_read_is_refused(
    store: LocalStore, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from windlass.store.objects import Inbox

    copy = Inbox.copy

    def changing(self: Inbox, source: str, mode: int) -> str:
        found = copy(self, source, mode)
        if source.endswith("/a.txt"):
            Path(source).write_text("changed meanwhile")
        return found

    monkeypatch.setattr(Inbox, "copy", changing)
    with pytest.raises(PreconditionError, match=r"a\.txt changed while it was read"):
        store.add(data)
    assert store.versions() == []


def test_damaged_bytes_are_never_used_and_adding_heals_them(store: LocalStore, data: Path) -> None:
    version = store.add(data)
    entry = version.entries[0]
    path = store.open_object(entry)
    path.chmod(0o644)
    path.write_text("ALPHA")
    with pytest.raises(PreconditionError, match=r"the bytes of `a\.txt` in the store .* changed") as caught:
        store.verify(entry)
    assert caught.value.code == "store-damaged"
    with pytest.raises(PreconditionError, match=r"missing bytes of `a\.txt`"):
        store.verify(entry)
    store.add(data)
    assert store.verify(entry).read_text() == "alpha"


def test_a_quota_refuses_new_bytes_only(data: Path, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store", quota_bytes=13)
    store.add(data)
    store.add(data)
    (data / "c").write_text("more")
    with pytest.raises(PreconditionError, match="exceed its quota of 13B") as caught:
        store.add(data)
    assert caught.value.code == "store-full"
    assert len(store.versions()) == 1


def test_the_store_is_where_the_environment_says(tmp_path: Path) -> None:
    assert LocalStore.of(tmp_path, {}).root == tmp_path / "store"
    assert LocalStore.of(tmp_path, {"WINDLASS_STORE": "/x"}).root == Path("/x")
    assert LocalStore.of(tmp_path, {"WINDLASS_STORE_QUOTA": "1GiB"}).quota_bytes == 1 << 30
    with pytest.raises(UsageError, match="invalid size `much` in WINDLASS_STORE_QUOTA"):
        LocalStore.of(tmp_path, {"WINDLASS_STORE_QUOTA": "much"})


def test_absolute_links_mean_nothing_elsewhere(store: LocalStore, data: Path) -> None:
    (data / "abs").symlink_to(data / "a.txt")
    with pytest.raises(PreconditionError, match="the link abs has an absolute target"):
        store.add(data)
