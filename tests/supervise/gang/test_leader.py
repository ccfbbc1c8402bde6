from __future__ import annotations

import os
import selectors
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windlass.core.clock import FakeClock
from windlass.core.errors import PreconditionError
from windlass.core.process import identify
from windlass.record import events
from windlass.record.journal import JournalWriter, read_journal
from windlass.record.state import End, fold
from windlass.supervise.fencing.guard import GuardContext
from windlass.supervise.gang import leader as leader_module
from windlass.supervise.gang.incarnation import LOCAL
from windlass.supervise.gang.journal_view import RunJournalView
from windlass.supervise.gang.leader import Leader
from windlass.supervise.gang.messages import Command, Phase, ReplicaStatus, Step
from windlass.supervise.job import JobDocument, JobPaths, ReplicaCommand, TaskSettings, TaskShape
from windlass.supervise.leases import LeasableResources, acquire
from windlass.supervise.logs.pipe import LogPipe
from windlass.supervise.ports import Ports
from windlass.supervise.replica.machine import ports_of


class Scene:
    """A run's folder with one task of one replica, and its leaders."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.folder = folder
        self.job_folder = folder / "jobs" / "main-1"
        self.job = JobDocument(
            run="r",
            task="main",
            job=1,
            token="t",
            paths=JobPaths(str(folder), out=str(folder / "out"), checkpoints=str(folder / "checkpoints")),
            command=ReplicaCommand(("true",), cwd=str(folder)),
            settings=TaskSettings(checkpoint_pattern="step_*"),
        )
        for path in (self.job_folder, folder / "journal", folder / "out", folder / "checkpoints"):
            path.mkdir(parents=True)
        self.client = JournalWriter(folder / "journal", "client", self.clock)
        intent: dict[str, Any] = {"job": 1, "token": "t", "backend": "local", "resets_budgets": False}
        self.client.append(events.JOB_INTENDED, task="main", **intent)
        self.commands: list[Command] = []
        self.journal: RunJournalView | None = None

    def lead(self, epoch: int = 1) -> Leader:
        if self.journal is not None:
            self.journal.close()
        self.journal = RunJournalView(self.folder / "journal", "main", 0, self.clock, on_record=lambda _: None)
        self.journal.widen()
        return Leader(
            self.job,
            self.job_folder,
            self.ports(),
            epoch=epoch,
            journal=self.journal,
            run=self.commands.extend,
        )

    def lease(self, num_gpus: int) -> None:
        paths = replace(self.job.paths, leases=str(self.folder / "leases"))
        self.job = replace(self.job, paths=paths, shape=TaskShape(gpus=num_gpus))

    def ports(self) -> Ports:
        context = GuardContext(LogPipe.create(), os.open("/dev/null", os.O_RDWR), os.getpid())
        selector = selectors.DefaultSelector()
        return ports_of(self.job, self.job_folder, 0, context, incarnation=LOCAL, clock=self.clock, selector=selector)

    def kinds(self) -> list[str]:
        return [record.kind for record in read_journal(self.folder / "journal") if record.writer != "client"]

    def notes(self) -> list[str]:
        return [note[4] for note in fold(read_journal(self.folder / "journal")).notes]

    def begin_attempt(self) -> None:
        assert self.journal is not None
        facts = {"epoch": 1, "leader": "h", "address": "127.0.0.1", "port": 1}
        self.journal.append(events.ATTEMPT_STARTED, job=1, attempt=1, **facts)

    def succeed(self) -> None:
        assert self.journal is not None
        self.begin_attempt()
        self.journal.append(events.ATTEMPT_ENDED, job=1, attempt=1, epoch=1, end=End("ok").to_data())
        facts = {"verdict": "succeeded", "cause": "ok", "message": ""}
        self.journal.append(events.TASK_ENDED, job=1, attempt=1, **facts)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "run")


def entries(scene: Scene) -> list[str]:
    return [r.data["path"] for r in read_journal(scene.folder / "journal") if r.kind == events.PROGRESS_ENTRY]


def test_an_entry_counts_once_it_is_stable_and_only_once(scene: Scene) -> None:
    leader = scene.lead()
    for _ in range(4):
        (scene.folder / "checkpoints" / "step_1").touch()
        leader._check_entries()
    leader._check_entries()
    assert entries(scene) == ["step_1"]
    again = scene.lead(2)
    (scene.folder / "checkpoints" / "step_2").touch()
    for _ in range(3):
        again._check_entries()
    assert entries(scene) == ["step_1", "step_2"]


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "a**b/*", ".", "**/..", ""])
def test_a_pattern_that_cannot_be_used_harms_nobody(scene: Scene, pattern: str) -> None:
    scene.job = replace(scene.job, settings=TaskSettings(checkpoint_pattern=pattern))
    leader = scene.lead()
    for _ in range(2):
        leader._check_entries()
    assert scene.folder.exists()


def test_an_entry_that_is_deleted_meanwhile_harms_nobody(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    leader = scene.lead()
    gone = scene.folder / "checkpoints" / "step_1"
    monkeypatch.setattr(leader_module, "_matches", lambda folder, pattern: [gone])
    for _ in range(3):
        leader._check_entries()
    assert entries(scene) == []


def test_outputs_that_cannot_be_recorded_become_a_note(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *, is_beside: bool) -> None:
        raise PreconditionError("out.json is in the way", code="already-exists")

    monkeypatch.setattr(leader_module, "commit_manifest", refuse)
    delivery = scene.folder / "t.json"
    delivery.write_bytes(b"{}")
    scene.job = replace(scene.job, paths=replace(scene.job.paths, delivery=str(delivery)))
    leader = scene.lead()
    scene.succeed()
    leader.release()
    assert not delivery.exists()
    assert scene.notes() == ["cannot record the outputs of task main: out.json is in the way"]
    assert events.OUTPUTS not in scene.kinds()


def test_secrets_are_removed_before_the_outputs_are_digested(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    delivery = scene.folder / "t.json"
    delivery.write_bytes(b"{}")

    def look(path: Path, *, is_beside: bool) -> None:
        assert not delivery.exists()
        raise OSError(28, "no space")

    monkeypatch.setattr(leader_module, "commit_manifest", look)
    scene.job = replace(scene.job, paths=replace(scene.job.paths, delivery=str(delivery)))
    leader = scene.lead()
    scene.succeed()
    leader.release()
    assert len(scene.notes()) == 1


def test_a_new_leader_of_a_running_attempt_knows_its_gpus(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_GPUS", "0,1")
    scene.lease(num_gpus=2)
    scene.lead()
    acquire(
        scene.job.lease, scene.job_folder, str(identify(os.getpid())), "r/main", LeasableResources(("0", "1"), 1.0, 1)
    )
    scene.begin_attempt()
    leader = scene.lead(2)
    leader.start()
    assert leader.core.order.step is Step.RUN
    assert leader.send(leader.core.order).gpus == "0,1"
    assert scene.notes() == []


def test_leases_lost_to_another_job_meanwhile_are_told(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_GPUS", "0")
    scene.lease(num_gpus=1)
    scene.lead()
    other = scene.folder / "jobs" / "other-1"
    acquire(scene.job.lease, other, str(identify(os.getpid())), "r/other", LeasableResources(("0",), 1.0, 1))
    scene.begin_attempt()
    scene.lead(2).start()
    assert scene.notes() == ["attempt 1 lost its leases: the task waits for 1 GPUs, 0 of 1 free (held by r/other)"]


def test_what_the_last_process_saved_counts_though_nobody_saw_it_twice(scene: Scene) -> None:
    leader = scene.lead()
    number = leader.core.order.attempt
    (scene.folder / "checkpoints" / "step_9").touch()
    leader._check_entries_when_ended(ReplicaStatus(0, attempt=number, phase=Phase.STARTED))
    assert entries(scene) == []
    leader._check_entries_when_ended(ReplicaStatus(0, attempt=number, phase=Phase.ENDED))
    assert entries(scene) == ["step_9"]
