from __future__ import annotations

import os
from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError, WaitTimeoutError
from windlass.store.collecting import collect
from windlass.store.data_version import Version
from windlass.store.local import LocalStore

DAY_S = 86_400.0


@pytest.fixture
def versions(store: LocalStore, data: Path) -> list[Version]:
    """Three versions; the first has a name."""
    made = []
    for text in ("one", "two", "three"):
        (data / "a.txt").write_text(text)
        made.append(store.add(data, name="named" if text == "one" else ""))
    return made


def later(store: LocalStore) -> LocalStore:
    now = store.clock()
    return LocalStore(store.root, clock=lambda: now + 8 * DAY_S)


def test_names_pins_and_recent_use_keep_a_version(store: LocalStore, versions: list[Version]) -> None:
    assert collect(store, pinned={}).versions == ()
    pinned = {versions[1].digest: "exp-1234"}
    dry = collect(later(store), pinned=pinned, is_dry=True)
    assert (dry.versions, dry.num_objects, dry.num_bytes) == ((versions[2].digest,), 1, 5)
    done = collect(later(store), pinned=pinned)
    assert (done.versions, done.num_objects, done.num_bytes) == ((versions[2].digest,), 1, 5)
    assert dict(done.kept) == {versions[1].digest: "exp-1234"}
    for version in versions[:2]:
        for entry in version.entries:
            if entry.mode != "l":
                store.verify(entry)
    assert store.versions() == sorted(each.digest for each in versions[:2])


def test_what_killed_writers_left_goes(store: LocalStore, versions: list[Version]) -> None:
    (store.root / "incoming/4711.dead").mkdir(parents=True)
    (store.root / "incoming/4711.dead/1").write_text("half")
    (store.root / "partial").mkdir()
    (store.root / "partial/abc").write_text("half")
    collect(store, pinned={})
    assert not (store.root / "incoming").exists()
    assert os.listdir(store.root / "partial") == ["abc"]
    assert collect(later(store), pinned={versions[1].digest: "", versions[2].digest: ""}).num_bytes == 4
    assert os.listdir(store.root / "partial") == []


def test_nothing_goes_while_somebody_writes(
    store: LocalStore, versions: list[Version], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.store.collecting._LOCK_S", 0.0)
    with store.writing(), pytest.raises(WaitTimeoutError, match="was in use by other processes") as caught:
        collect(later(store), pinned={})
    assert caught.value.code == "in-use"
    assert len(store.versions()) == 3


def test_a_damaged_manifest_stops_it(store: LocalStore, versions: list[Version]) -> None:
    path = store.root / "versions" / f"{versions[0].digest}.json"
    path.chmod(0o644)
    path.write_text("{")
    before = sorted(entry.name for entry in store.objects.walk())
    with pytest.raises(PreconditionError, match=r"the manifest .* is damaged"):
        collect(later(store), pinned={})
    assert sorted(entry.name for entry in store.objects.walk()) == before


def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert collect(LocalStore(tmp_path / "none"), pinned={}).num_objects == 0
    assert not (tmp_path / "none").exists()
