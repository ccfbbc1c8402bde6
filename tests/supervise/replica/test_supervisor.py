from __future__ import annotations

import json
import os
import selectors
from dataclasses import replace
from pathlib import Path

import pytest

from windlass.core.clock import FakeClock
from windlass.record import events
from windlass.record.journal import JournalWriter, read_journal
from windlass.record.state import RunFacts, fold
from windlass.supervise.fencing.guard import GuardContext
from windlass.supervise.gang.election import Claims
from windlass.supervise.gang.incarnation import LOCAL
from windlass.supervise.gang.messages import Order, ReplicaStatus, Step, WriteControl
from windlass.supervise.job import JobDocument, JobPaths, JobSecret, ReplicaCommand, TaskSettings
from windlass.supervise.logs.pipe import LogPipe
from windlass.supervise.replica.machine import ports_of
from windlass.supervise.replica.supervisor import Supervisor


class Scene:
    """A job of one replica on disk, and its supervisor without a loop."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.scratch = folder, folder / "tmp"
        self.clock = FakeClock()
        monkeypatch.setenv("TMPDIR", str(self.scratch))
        self.job_folder = folder / "jobs" / "main-1"
        for path in (self.job_folder, folder / "journal"):
            path.mkdir(parents=True)
        self.job = JobDocument(
            run="r",
            task="main",
            job=1,
            token="t",
            paths=JobPaths(str(folder), out=str(folder / "out"), checkpoints=str(folder / "checkpoints")),
            command=ReplicaCommand(("true",), cwd=str(folder)),
        )
        client = JournalWriter(folder / "journal", "client", self.clock)
        client.append(events.JOB_INTENDED, task="main", job=1, token="t", backend="local", resets_budgets=False)
        self.context = GuardContext(LogPipe.create(), os.open("/dev/null", os.O_RDWR), os.getppid())

    def supervisor(self) -> Supervisor:
        self.selector = selectors.DefaultSelector()
        ports = ports_of(
            self.job, self.job_folder, 0, self.context, incarnation=LOCAL, clock=self.clock, selector=self.selector
        )
        return Supervisor(self.job, self.job_folder, 0, ports)

    def deliver_to(self, path: Path) -> None:
        paths, settings = replace(self.job.paths, delivery=str(path)), TaskSettings(secrets=(JobSecret("KEY"),))
        self.job = replace(self.job, paths=paths, settings=settings)

    def facts(self) -> RunFacts:
        return fold(read_journal(self.folder / "journal"))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path / "run", monkeypatch)


def test_a_scratch_folder_that_was_cleaned_up_is_made_again(scene: Scene) -> None:
    supervisor = scene.supervisor()
    for _ in range(2):
        supervisor._execute(WriteControl(True, 0, "cancelled"))
        (control,) = scene.scratch.glob("*/control.json")
        assert json.loads(control.read_bytes())["stop"] is True
        control.unlink()
        control.parent.rmdir()
    supervisor.close()


def test_a_control_file_that_cannot_be_written_is_told_once(scene: Scene) -> None:
    scene.scratch.write_text("not a folder")
    supervisor = scene.supervisor()
    for _ in range(3):
        supervisor._execute(WriteControl(True, 0, "cancelled"))
    (note,) = scene.facts().notes
    assert note[4].startswith("cannot pass stop and save requests to the code through ")
    assert note[4].endswith(": Not a directory")


def test_a_missing_delivery_ends_the_attempt_and_not_the_supervisor(scene: Scene) -> None:
    delivery = scene.folder / "gone.json"
    scene.deliver_to(delivery)
    supervisor = scene.supervisor()
    for step in (Step.GATHER, Step.RUN):
        supervisor._on_order(Order(1, 1, step))
    end = scene.facts().task("main").attempts[1].replicas[0].end
    assert end is not None
    assert (end.cause, end.message) == (
        "secret-missing",
        f"the secrets of this run are no longer at {delivery}",
    )


def test_a_supervisor_of_an_ended_task_needs_no_secrets(scene: Scene) -> None:
    scene.deliver_to(scene.folder / "gone.json")
    supervisor = scene.supervisor()
    facts = {"job": 1, "attempt": 0, "verdict": "succeeded", "cause": "ok", "message": ""}
    supervisor._journal.append(events.TASK_ENDED, **facts)
    supervisor.tick()
    assert supervisor.exit_code == 0


def test_what_cannot_be_started_ends_the_attempt(scene: Scene) -> None:
    Path(scene.job.paths.out).write_text("in the way")
    supervisor = scene.supervisor()
    for step in (Step.GATHER, Step.RUN):
        supervisor._on_order(Order(1, 1, step))
    end = scene.facts().task("main").attempts[1].replicas[0].end
    assert end is not None
    assert end.cause == "start-failed"
    assert supervisor._process is None


def test_output_that_nobody_takes_wakes_nobody(scene: Scene) -> None:
    supervisor = scene.supervisor()
    os.write(scene.context.log_pipe.write_fd, b"late\n")
    assert scene.selector.select(0) == []
    supervisor._listen_to_output(True)
    supervisor._listen_to_output(True)
    ((key, _),) = scene.selector.select(0)
    key.data()
    assert scene.selector.select(0) == []
    supervisor._listen_to_output(False)


class _Daemons:
    """Slurm's daemons above a replica."""

    is_step_abandoned = False


class _Leader:
    """A leader whose scheduler says whether the job is over."""

    def __init__(self) -> None:
        self.num_asked, self.is_over, self.is_closed = 0, False, False
        self.statuses: list[str] = []

    def is_job_over(self, now: float) -> bool:
        self.num_asked += 1
        return self.is_over

    def on_status(self, status: ReplicaStatus) -> None:
        self.statuses.append(status.notice)

    def close(self) -> None:
        self.is_closed = True


def test_a_leader_whose_step_has_no_daemon_is_told_by_itself_that_its_job_is_over(scene: Scene) -> None:
    """No signal of Slurm's reaches it."""
    supervisor, daemons, leader = scene.supervisor(), _Daemons(), _Leader()
    supervisor._daemons, supervisor._leader = daemons, leader  # type: ignore[assignment]
    supervisor._check_job(0.0)
    assert leader.num_asked == 0
    daemons.is_step_abandoned = True
    supervisor._check_job(1.0)
    assert (leader.num_asked, leader.statuses) == (1, [])
    leader.is_over = True
    supervisor._check_job(2.0)
    supervisor._check_job(3.0)
    assert leader.num_asked == 2
    assert [notice.endswith("was killed, and its job is over in Slurm") for notice in leader.statuses] == [True]


def test_a_leader_whose_step_has_no_daemon_leaves_its_cause_to_the_next_link(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not told what became of its job, which the next link asks."""
    supervisor, daemons, leader = scene.supervisor(), _Daemons(), _Leader()
    daemons.is_step_abandoned = True
    supervisor._daemons, supervisor._leader = daemons, leader  # type: ignore[assignment]
    monkeypatch.setattr(supervisor, "_claims", lambda: Claims(has_later_job=True))
    supervisor._find_leader(0.0)
    assert leader.is_closed
    assert supervisor._leader is None
    assert supervisor.exit_code == 75
