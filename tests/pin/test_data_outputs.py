"""`run:` and `store:` sources, which need no other machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.pin.data.pinned import DataPlaces
from windlass.pin.data.pinning import check_data, pin_data, place_data
from windlass.record.manifest import commit_manifest

RUN = "exp-abcd2345"


@pytest.fixture
def places(home: Path) -> DataPlaces:
    return DataPlaces.of(home)


@pytest.fixture
def out(home: Path) -> Path:
    """The output of the task `train`, recorded as a task that succeeded does."""
    folder = home / "runs" / RUN / "out" / "train"
    (folder / "model").mkdir(parents=True)
    (folder / "model/weights").write_text("weights")
    (folder / "log").write_text("log")
    commit_manifest(folder, is_beside=True)
    return folder


def test_an_output_is_used_where_it_lies(out: Path, places: DataPlaces) -> None:
    for path, found in (("train", out), ("train/model", out / "model"), ("out/train/log", out / "log")):
        pin = pin_data("d", f"run:{RUN}/{path}", Path("/"), places=places)
        assert place_data(pin, Path("/"), places) == found
        assert pin.digest == pin_data("d", f"file:{found}", Path("/")).digest
        check_data(pin, Path("/"), places=places)


def test_an_output_that_changed_since_is_refused(out: Path, places: DataPlaces) -> None:
    (out / "model/weights").write_text("WEIGHTS")
    (out / "model/extra").write_text("")
    with pytest.raises(PreconditionError, match="differs from what its task recorded: extra, weights") as caught:
        pin_data("d", f"run:{RUN}/train/model", Path("/"), places=places)
    assert caught.value.code == "input-changed"
    assert pin_data("d", f"run:{RUN}/train/log", Path("/"), places=places).size_bytes == 3


def test_a_task_that_recorded_nothing_has_no_output(out: Path, places: DataPlaces) -> None:
    (out.parent / "train.manifest.json").unlink()
    with pytest.raises(PreconditionError, match=f"the task `train` of {RUN} recorded no output") as caught:
        pin_data("d", f"run:{RUN}/train", Path("/"), places=places)
    assert caught.value.code == "not-found"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (f"run:{RUN}/eval", "no output `eval`"),
        (f"run:{RUN}/train/none", "no `none` in"),
        ("run:other-abcd2345/train", "no output `train` of the run other-abcd2345"),
    ],
)
def test_what_is_not_there_is_named(out: Path, places: DataPlaces, source: str, message: str) -> None:
    with pytest.raises(NotFoundError, match=message):
        pin_data("d", source, Path("/"), places=places)


@pytest.mark.parametrize("source", [f"run:{RUN}", f"run:{RUN}/train/../../../..", "run:/"])
def test_what_names_no_output_is_refused(out: Path, places: DataPlaces, source: str) -> None:
    with pytest.raises(PreconditionError, match="does not name an output of a run"):
        pin_data("d", source, Path("/"), places=places)


def test_a_link_may_not_lead_out_of_the_output(out: Path, places: DataPlaces, tmp_path: Path) -> None:
    (out / "away").symlink_to(tmp_path)
    with pytest.raises(PreconditionError, match="is outside of its task's output"):
        pin_data("d", f"run:{RUN}/train/away", Path("/"), places=places)


def test_a_version_of_the_store_by_name_and_by_digest(places: DataPlaces, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d/a").write_text("alpha")
    version = places.store.add(tmp_path / "d", name="corpus")
    pins = [
        pin_data("d", source, Path("/"), places=places) for source in ("store:corpus", f"store:sha256:{version.digest}")
    ]
    assert {pin.digest for pin in pins} == {version.digest}
    path = place_data(pins[0], Path("/"), places)
    assert (path.name, (path / "a").read_text()) == ("corpus", "alpha")
    check_data(pins[0], Path("/"), places=places)
    (path / "a").unlink()
    with pytest.raises(PreconditionError, match="differs from what was pinned: a is missing"):
        check_data(pins[0], Path("/"), places=places)


def test_a_name_that_moved_leaves_the_pin_alone(places: DataPlaces, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("alpha")
    places.store.add(tmp_path / "a", name="corpus")
    pin = pin_data("d", "store:corpus", Path("/"), places=places)
    (tmp_path / "a").write_text("beta")
    places.store.add(tmp_path / "a", name="corpus")
    assert place_data(pin, Path("/"), places).read_text() == "alpha"


def test_unknown_data_is_named(places: DataPlaces) -> None:
    with pytest.raises(NotFoundError, match="no data `corpus` in the store") as caught:
        pin_data("d", "store:corpus", Path("/"), places=places)
    assert caught.value.code == "data-not-found"
