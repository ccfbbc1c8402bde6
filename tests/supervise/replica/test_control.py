"""The folder of requests lies where all users of a machine may write, and is of use to one of them only."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from windlass.supervise.gang.incarnation import Incarnation
from windlass.supervise.gang.messages import WriteControl
from windlass.supervise.job import JobDocument, JobPaths, ReplicaCommand, TaskShape
from windlass.supervise.replica.control import ControlFile

TOKEN = "0123456789abcdef" * 2


def control(folder: Path, rank: int = 0, *, num_replicas: int = 2) -> ControlFile:
    job = JobDocument(
        run="r",
        task="train",
        job=1,
        token=TOKEN,
        paths=JobPaths(str(folder), out=str(folder), checkpoints=str(folder)),
        shape=TaskShape(nodes=num_replicas),
        command=ReplicaCommand(("true",), cwd="/"),
    )
    return ControlFile(job, rank, Incarnation("", link=0))


def path_of(found: ControlFile) -> Path:
    return Path(found.variables("")["WINDLASS_CONTROL"])


@pytest.fixture(autouse=True)
def _shared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_every_supervisor_of_a_replica_finds_the_same_file(tmp_path: Path) -> None:
    first = control(tmp_path)
    assert first.write(WriteControl(True, 1, "x", 0.0)) == ""
    assert path_of(control(tmp_path)) == path_of(first)
    assert json.loads(path_of(first).read_text())["stop"] is True
    assert path_of(first).parent.stat().st_mode & 0o777 == 0o700


def test_the_name_of_one_tells_neither_the_token_nor_the_others(tmp_path: Path) -> None:
    names = [path_of(control(tmp_path, rank)).parent.name for rank in range(2)]
    assert names[0][:-2] != names[1][:-2]
    assert not any(TOKEN[:6] in name for name in names)


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_a_folder_that_somebody_else_made_first_is_not_used(tmp_path: Path, num_replicas: int) -> None:
    taken = path_of(control(tmp_path, num_replicas=num_replicas)).parent
    taken.mkdir(mode=0o700)
    taken.chmod(0o777)  # a folder of another user would have the bits of this one, or more
    found = control(tmp_path, num_replicas=num_replicas)
    assert path_of(found).parent != taken
    assert found.write(WriteControl(False, 0, "", 0.0)) == ""
    assert os.listdir(taken) == []


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    taken = path_of(control(tmp_path)).parent
    taken.symlink_to(tmp_path / "elsewhere")
    found = control(tmp_path)
    assert found.write(WriteControl(False, 0, "", 0.0)) == ""
    assert not os.listdir(tmp_path / "elsewhere")


def test_a_folder_that_was_swapped_later_is_refused(tmp_path: Path) -> None:
    found = control(tmp_path)
    path_of(found).parent.mkdir(mode=0o755)
    assert "belongs to another user" in found.write(WriteControl(False, 0, "", 0.0))
