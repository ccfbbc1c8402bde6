from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runs.journals import RunScript
from windlass.core.files import lock
from windlass.launcher.data import Data
from windlass.launcher.gc.caches import clear, old_built_data, remove_built_data
from windlass.launcher.gc.removable import Kept, Removal
from windlass.pin.data.pinned import DataPlaces
from windlass.pin.image.engine import ImageFacts
from windlass.pin.image.records import ImageRecord, read_record, record_path, write_record
from windlass.runs.home import Home
from windlass.store.placing import place as store_place
from windlass.supervise.builds.once import build_once, find_ready

WEEK = 7 * 86400.0
CAUSES = {"succeeded": "ok", "failed": "user-error"}


def run_that_pins(home: Home, number: int, verdict: str, pins: dict[str, object]) -> None:
    run = RunScript(home, f"exp-0000000{number}").submit().start().end(verdict, CAUSES[verdict]).close()
    (run.path / "plan.json").write_text(json.dumps({"name": "exp", "pins": pins}))


def built(home: Home, key: str, age_s: float = 9e6) -> Path:
    def build(folder: Path) -> dict[str, object]:
        (folder / "data").mkdir()
        (folder / "data" / "x").write_text("x" * 5000)
        return {"proof": "data"}

    place = build_once(home.path / "data" / "built" / key, build, lambda line: None).folder
    os.utime(place / ".ready", (time.time() - age_s,) * 2)
    return place


def cleared(
    home: Home, *, drops_pinned: bool = False, is_dry: bool = False, images: bool = False
) -> list[Removal | Kept]:
    return list(
        clear(
            home,
            has_images=images,
            has_data=not images,
            older_than_s=WEEK,
            drops_pinned=drops_pinned,
            is_dry=is_dry,
        )
    )


def test_prepared_data_that_a_record_pins_stays(home: Path) -> None:
    place = Home(home)
    for number, verdict in ((1, "succeeded"), (2, "failed")):
        run_that_pins(place, number, verdict, {"builds": {"x": {"key": f"k-{verdict}"}}})
    folders = {name: built(place, f"k-{name}") for name in ("succeeded", "failed", "nobody")}
    folders["fresh"] = built(place, "k-fresh", age_s=10)
    told = {each.path.name: each for each in cleared(place, is_dry=True)}
    assert all(folder.exists() for folder in folders.values())
    assert isinstance(told["k-nobody"], Removal)
    assert told["k-nobody"].num_bytes > 5000
    assert told["k-succeeded"].why == "exp-00000001 pins it (--drop-pinned)"
    assert told["k-failed"].why == "exp-00000002 may continue with it"
    assert told["k-fresh"].why.startswith("used ")
    cleared(place)
    assert [name for name, folder in folders.items() if folder.exists()] == ["succeeded", "failed", "fresh"]
    cleared(place, drops_pinned=True)
    assert [name for name, folder in folders.items() if folder.exists()] == ["failed", "fresh"]
    assert not list((place.path / "data" / "built").glob(".*"))


def test_what_a_launch_finds_meanwhile_stays(home: Path) -> None:
    place = Home(home)
    folder = built(place, "k-1")
    (due,) = old_built_data(place, WEEK)
    assert isinstance(due, Removal)
    assert find_ready(folder) is not None
    assert not remove_built_data(due, place)
    assert folder.exists()


def test_data_that_is_being_built_stays(home: Path) -> None:
    place = Home(home)
    folder = built(place, "k-busy")
    with lock(folder.with_name("k-busy.lock")):
        (told,) = cleared(place)
    assert told.why == "it is being built"
    assert folder.exists()


def test_what_killed_builders_left_goes(home: Path) -> None:
    place = Home(home)
    folder = built(place, "k-1", age_s=10)
    left, young = folder.with_name(".k-1.0123456789ab"), folder.with_name(".k-1.ba9876543210")
    for each in (left, young):
        each.mkdir()
    os.utime(left, (1.0, 1.0))
    assert [each.path.name for each in cleared(place) if isinstance(each, Removal)] == [left.name]
    assert (left.exists(), young.exists(), folder.exists()) == (False, True, True)


def test_versions_that_a_record_pins_stay(home: Path, tmp_path: Path) -> None:
    place = Home(home)
    data = Data(home=place)
    digests = {}
    for name in ("succeeded", "failed", "nobody"):
        file = tmp_path / name
        file.write_text(name * 1000)
        digests[name] = data.add(str(file)).digest
        os.utime(data.local._version_path(digests[name]), (1.0, 1.0))
    for number, verdict in ((1, "succeeded"), (2, "failed")):
        pin = {"name": "x", "source": "store:x", "digest": digests[verdict]}
        run_that_pins(place, number, verdict, {"data": {"x": pin}})

    def versions() -> list[str]:
        return sorted(name for name, digest in digests.items() if digest in set(data.local.versions()))

    cleared(place, is_dry=True)
    assert versions() == ["failed", "nobody", "succeeded"]
    cleared(place)
    assert versions() == ["failed", "succeeded"]
    cleared(place, drops_pinned=True)
    assert versions() == ["failed"]


def test_data_that_goes_is_not_held_by_what_jobs_were_given(home: Path, tmp_path: Path) -> None:
    place, data = Home(home), Data(home=Home(home))
    places, (file, other) = DataPlaces.of(home), (tmp_path / "file", tmp_path / "other")
    file.write_text("x" * 1000)
    other.write_text("y")
    going, named = data.add(str(file)), data.add(str(other), name="other")
    paths = {version: store_place(data.local, version, places.placed) for version in (going, named)}
    os.utime(data.local._version_path(going.digest), (1.0, 1.0))
    cleared(place, is_dry=True)
    assert paths[going].exists()
    cleared(place)
    assert not paths[going].exists()
    assert paths[named].read_text() == "y"


class FakeEngine:
    """An engine that keeps what is in use."""

    def __init__(self, in_use: set[str]) -> None:
        self.in_use = in_use
        self.removed: list[str] = []
        self.tags: tuple[str, ...] = ()

    def remove(self, name: str) -> bool:
        self.removed.append(name)
        return name not in self.in_use

    def find(self, name: str) -> ImageFacts | None:
        return ImageFacts(image_id=name, tags=self.tags) if name in self.in_use else None


def image(home: Home, key: str) -> Path:
    record = ImageRecord(
        key=key,
        engine="docker",
        name="proj/main",
        image_id=f"sha256:{key}",
        commits=("c",),
        tags=(f"proj/main:{key}",),
        built_at=1.0,
        size_bytes=100,
        bases={},
        packages=(),
    )
    write_record(home.cache, record)
    path = record_path(home.cache, key, "docker")
    os.utime(path, (1.0, 1.0))
    return path


def test_images_that_a_record_pins_stay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, engine = Home(home), FakeEngine({"sha256:used"})
    monkeypatch.setattr("windlass.pin.image.engine.find_engine", lambda kind: engine)
    for number, verdict in ((1, "succeeded"), (2, "failed")):
        run_that_pins(place, number, verdict, {"image": {"key": f"key-{verdict}"}})
    paths = {key: image(place, key) for key in ("key-succeeded", "key-failed", "key-nobody", "used")}
    told = {each.path: each for each in cleared(place, images=True)}
    assert [key for key, path in paths.items() if path.exists()] == ["key-succeeded", "key-failed", "used"]
    assert told[paths["key-succeeded"]].why == "proj/main:key-succeeded: exp-00000001 pins it (--drop-pinned)"
    assert told[paths["used"]].why.endswith("or its engine is missing or did not remove it")
    assert engine.removed == ["proj/main:key-nobody", "sha256:key-nobody", "proj/main:used", "sha256:used"]
    cleared(place, images=True, drops_pinned=True)
    assert [key for key, path in paths.items() if path.exists()] == ["key-failed", "used"]


def test_an_image_that_was_only_named_is_none_of_ours(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, engine = Home(home), FakeEngine(set())
    monkeypatch.setattr("windlass.pin.image.engine.find_engine", lambda kind: engine)
    path = image(place, "python")
    found = read_record(place.cache, "python", "docker")
    assert found is not None
    write_record(place.cache, replace(found, commits=(), tags=("python:3.12",)))
    os.utime(path, (1.0, 1.0))
    assert cleared(place, images=True) == []
    assert engine.removed == []


def test_all_names_that_windlass_gave_go_and_no_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, engine = Home(home), FakeEngine({"sha256:used"})
    engine.tags = ("localhost/proj/main:used", "localhost/proj/main:k-1", "mine:latest", "proj/other:k-1")
    monkeypatch.setattr("windlass.pin.image.engine.find_engine", lambda kind: engine)
    image(place, "used")
    cleared(place, images=True)
    assert engine.removed == ["proj/main:used", "localhost/proj/main:k-1", "sha256:used"]


def test_prepared_data_that_was_looked_for_lately_stays(home: Path) -> None:
    place = Home(home)
    folder = built(place, "k-1")
    assert find_ready(folder) is not None
    (told,) = cleared(place)
    assert told.why.startswith("used ")
    assert folder.exists()
