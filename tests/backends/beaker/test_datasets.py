"""Datasets against the fake Beaker: whole, once, and read from the middle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.beaker.sample_jobs import plain_spec
from windlass.backends.beaker import datasets
from windlass.backends.beaker.service import BeakerService
from windlass.backends.beaker.values import BeakerFile
from windlass.core.errors import NotFoundError, PreconditionError
from windlass.testing.beaker import FakeBeaker

pytestmark = pytest.mark.system


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    (made / "sub dir").mkdir(parents=True)
    (made / "sub dir" / "50% of #1?.txt").write_text("odd")
    (made / "empty").write_text("")
    (made / "long").write_bytes(bytes(range(256)) * 1000)
    (made / "link").symlink_to("long")
    return made


def test_a_folder_comes_back_as_it_was(service: BeakerService, folder: Path, tmp_path: Path) -> None:
    made = service.create_dataset("folder", folder)
    assert {file.path: file.size for file in service.files(made)} == {
        "empty": 0,
        "link": 256000,
        "long": 256000,
        "sub dir/50% of #1?.txt": 3,
    }
    service.download(made, tmp_path / "back")
    for name in ("sub dir/50% of #1?.txt", "empty", "long"):
        assert (tmp_path / "back" / name).read_bytes() == (folder / name).read_bytes()


def test_a_dataset_is_made_once(beaker: FakeBeaker, service: BeakerService, folder: Path) -> None:
    beaker.scenario.lose_next_reply("CreateDataset")
    made = service.create_dataset("folder", folder)
    sent = beaker.calls["WriteDatasetFile"]
    assert service.create_dataset("folder", folder) == made == service.find_dataset("folder")
    assert beaker.calls["WriteDatasetFile"] == sent == 4
    assert service.find_dataset("other") == ""


def test_one_that_was_not_finished_is_finished(
    beaker: FakeBeaker, service: BeakerService, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "_NUM_SENDERS", 1)
    beaker.scenario.refuse("WriteDatasetFile", "disk full", status=400)
    with pytest.raises(PreconditionError):
        service.create_dataset("folder", folder)
    made = service.create_dataset("folder", folder)
    assert len(service.files(made)) == 4
    assert service.read(made, "long") == (folder / "long").read_bytes()


def test_a_file_is_read_from_the_middle(service: BeakerService, folder: Path) -> None:
    made = service.create_dataset("folder", folder)
    whole = (folder / "long").read_bytes()
    assert service.read(made, "long", 1000) == whole[1000:]
    assert service.read(made, "long", 1000, 10) == whole[1000:1010]
    assert service.read(made, "long", 0, 10) == whole[:10]
    assert service.read(made, "long", len(whole)) == b""
    assert service.read(made, "long", len(whole) + 5) == b""
    with pytest.raises(NotFoundError) as caught:
        service.read(made, "nothing")
    assert caught.value.message == f"dataset {made} has no file `nothing`"


def test_a_download_that_was_cut_goes_on(service: BeakerService, folder: Path, tmp_path: Path) -> None:
    made = service.create_dataset("folder", folder)
    back = tmp_path / "back"
    back.mkdir()
    (back / ".long.part").write_bytes((folder / "long").read_bytes()[:1000])
    service.download(made, back, prefix="long")
    assert (back / "long").read_bytes() == (folder / "long").read_bytes()
    assert not (back / ".long.part").exists()


def test_a_file_that_leads_out_is_refused(
    service: BeakerService, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = service.create_dataset("folder", folder)
    bad = BeakerFile(path="../outside", size=3)
    monkeypatch.setattr(service, "files", lambda dataset, prefix="": (bad,))
    with pytest.raises(PreconditionError) as caught:
        service.download(made, tmp_path / "back")
    assert caught.value.code == "beaker-path"
    assert not (tmp_path / "outside").exists()


def test_results_of_a_running_job_are_seen(beaker: FakeBeaker, service: BeakerService) -> None:
    made = service.create(plain_spec("echo hi > /results/a.txt; echo made; sleep 600"))
    beaker.wait_for_line(made.id, "made")
    (job,) = service.jobs(made.id)
    assert service.read(job.results, "a.txt") == b"hi\n"
    service.cancel(made.id)


def test_a_file_whose_reply_was_lost_is_whole(beaker: FakeBeaker, service: BeakerService, folder: Path) -> None:
    beaker.scenario.lose_next_reply("WriteDatasetFile", times=2)
    made = service.create_dataset("folder", folder)
    assert {file.path: file.size for file in service.files(made)} == {
        "empty": 0,
        "link": 256000,
        "long": 256000,
        "sub dir/50% of #1?.txt": 3,
    }
    assert service.read(made, "long") == (folder / "long").read_bytes()
