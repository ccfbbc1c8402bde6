"""One trainer at a time in a folder: who is kept out, who may wait, and what never stands in the way."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from tests.train.tiny import QUIET, Diary, PointLoader, Points, point_module
from windlass import report
from windlass.core.errors import PreconditionError
from windlass.report.place import Place
from windlass.train.checkpoint import lock
from windlass.train.checkpoint.listing import list_committed
from windlass.train.checkpoint.lock import LOCK_FILE, sole_trainer
from windlass.train.checkpoint.store import FolderStore, open_store
from windlass.train.duration import Duration
from windlass.train.parallel.world import World
from windlass.train.trainer import Trainer

ALONE = World(device=torch.device("cpu"))
OWN: dict[str, object] = {"run": "r1", "task": "train", "rank": 0}
HOLD = """
import fcntl, json, os, socket, sys, time
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(file, fcntl.LOCK_EX)
os.pwrite(file, json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": "noon", **json.loads(sys.argv[2])}).encode(), 0)
print("held", flush=True)
time.sleep(float(sys.argv[3]))
"""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_WAIT_S", 0.3)
    monkeypatch.setattr(lock, "_WAIT_FOR_OWN_S", 0.6)


@contextlib.contextmanager
def held_elsewhere(
    folder: Path, *, seconds: float = 60, signature: Mapping[str, object] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Another process holds the folder's lock."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-S", "-c", HOLD, str(folder / LOCK_FILE), json.dumps(signature or {}), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def trainer_in(folder: Path, *callbacks: Diary, steps: int = 4) -> Trainer[Points]:
    return Trainer(
        point_module(),
        PointLoader(),
        duration=Duration.steps(steps),
        callbacks={**QUIET, **{f"own{place}": each for place, each in enumerate(callbacks)}},
        store=open_store(str(folder), ALONE),
    )


def store_in(folder: Path) -> FolderStore:
    return open_store(str(folder), ALONE)


def test_a_second_trainer_is_refused_and_the_first_one_ends_well(tmp_path: Path) -> None:
    refused: list[PreconditionError] = []

    class Rival(Diary):
        def on_step_end(self) -> None:
            if self.trainer.step == 2:
                with pytest.raises(PreconditionError) as found:
                    trainer_in(tmp_path).fit()
                refused.append(found.value)

    assert trainer_in(tmp_path, Rival()).fit().is_finished
    assert refused[0].code == "in-use"
    assert f"{tmp_path} is in use by process {os.getpid()} on {os.uname().nodename} (since " in refused[0].message
    assert [item.step for item in list_committed(store_in(tmp_path).files)] == [4]
    assert trainer_in(tmp_path, steps=6).fit().step == 6


def test_another_process_is_named_and_what_sigkill_leaves_blocks_nobody(tmp_path: Path) -> None:
    with held_elsewhere(tmp_path) as process:
        with pytest.raises(PreconditionError, match=rf"is in use by process {process.pid} on .* \(since noon\)"):
            trainer_in(tmp_path).fit()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == process.pid
        assert trainer_in(tmp_path).fit().is_finished
    assert json.loads((tmp_path / LOCK_FILE).read_text())["pid"] == os.getpid()


def test_one_that_is_leaving_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lock, "_WAIT_S", 30.0)
    with held_elsewhere(tmp_path, seconds=0.2), sole_trainer(store_in(tmp_path), ALONE):
        pass
    assert capsys.readouterr().err.startswith("windlass: waiting for process ")


def test_an_attempt_of_the_same_task_is_waited_for_and_then_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "place", lambda: Place(run="r1", task="train", attempt=2))
    with held_elsewhere(tmp_path, signature=OWN), sole_trainer(store_in(tmp_path), ALONE):
        pass
    assert "an earlier attempt of this task, still holds" in capsys.readouterr().err
    for other in ({"run": "r2"}, {"rank": 1}):
        with (
            held_elsewhere(tmp_path, signature={**OWN, **other}),
            pytest.raises(PreconditionError, match="is in use by"),
            sole_trainer(store_in(tmp_path), ALONE),
        ):
            pass


def test_a_file_system_without_locks_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(descriptor: int, path: Path) -> None:
        raise PreconditionError(f"the file system of {path} has no file locks", code="no-file-locks")

    monkeypatch.setattr(lock, "take_lock", refuse)
    assert trainer_in(tmp_path).fit().is_finished
    told = capsys.readouterr().err
    assert told.count("has no file locks; a second trainer in this folder will not be detected") == 1


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(PreconditionError, match=f"cannot write checkpoints to {tmp_path}/file/x"),
        sole_trainer(store_in(tmp_path / "file" / "x"), ALONE),
    ):
        pass


def test_other_ranks_take_nothing_and_hear_of_the_first_ones_error(tmp_path: Path) -> None:
    class Second(World):
        def sum_on_host(self, values: object) -> list[float]:
            return [1.0]

    with (
        pytest.raises(PreconditionError, match="rank 0 cannot lock"),
        sole_trainer(store_in(tmp_path), Second(rank=1, size=2, device=torch.device("cpu"))),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_made_without_a_folder() -> None:
    with sole_trainer(None, ALONE), sole_trainer(open_store("memory://runs/x", ALONE), ALONE):
        pass


def test_a_forked_child_that_stays_does_not_hold_the_lock(tmp_path: Path) -> None:
    read_fd, write_fd = os.pipe()
    with sole_trainer(store_in(tmp_path), ALONE):
        child = os.fork()
        if child == 0:
            os.read(read_fd, 1)
            os._exit(0)
    try:
        with sole_trainer(store_in(tmp_path), ALONE):
            pass
    finally:
        os.write(write_fd, b"x")
        assert os.waitpid(child, 0)[1] == 0
        os.close(read_fd)
        os.close(write_fd)


def test_the_lock_is_free_after_an_error(tmp_path: Path) -> None:
    class Failing(Diary):
        def on_step_end(self) -> None:
            raise RuntimeError("stop")

    for _ in range(2):
        with pytest.raises(RuntimeError, match="stop"):
            trainer_in(tmp_path, Failing()).fit()
