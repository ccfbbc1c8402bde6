"""A job of real Slurm, queued over real ssh, whose run is known here by its mirror alone."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest

from tests.backends.slurm.dressing import dressed, lab_profile
from tests.lab.slurm import LOGIN, SlurmLab
from windlass.backends import JobState
from windlass.backends.site_shell import SshShell
from windlass.backends.slurm.backend import SlurmBackend
from windlass.core.errors import UnreachableError
from windlass.core.names import new_token
from windlass.launcher.client import client_journal
from windlass.launcher.remote import client
from windlass.launcher.remote.mirror import Mirror
from windlass.record import events
from windlass.record.state import State
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, create
from windlass.supervise.archive import ensure_archive
from windlass.supervise.job import JobDocument, JobPaths, ReplicaCommand, TaskSettings, TaskShape

pytestmark = pytest.mark.system

RUN = "run-abcd2345"
LINE = (
    "for i in 1 2 3 4; do echo line $i of ${rank}; done; until [ -e go ]; do sleep 0.05; done; "
    "for i in 5 6 7 8; do echo line $i of ${rank}; done; mkdir -p out/main; echo done >out/main/${rank}"
)


@pytest.fixture
def shell(slurm: SlurmLab) -> Iterator[SshShell]:
    shell = SshShell(LOGIN, config=slurm.hosts.ssh_config, alive_s=2, connect_timeout_s=8)
    yield shell
    slurm.hosts.join(LOGIN)
    shell.close()


@pytest.fixture
def mirror(shell: SshShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    monkeypatch.setattr(client, "_QUIET_S", 0.0)
    run = create(Home(tmp_path / "home"), RUN, {"plan.json": b"{}", "places.json": b"{}"})
    root = PurePosixPath(tmp_path / "shared" / "windlass" / "runs" / RUN)
    mirror = Mirror(run, root, shell, archive=ensure_archive(tmp_path / "archives"), python=sys.executable)
    mirror.ship()
    return mirror


def job(mirror: Mirror) -> JobDocument:
    document = JobDocument(
        run=RUN,
        task="main",
        job=1,
        token=new_token(),
        paths=JobPaths(str(mirror.root), out=str(mirror.root / "out"), checkpoints=str(mirror.root / "checkpoints")),
        shape=TaskShape(nodes=2),
        command=ReplicaCommand(
            ("/bin/sh", "-c", LINE), {}, cwd=str(mirror.root), is_shell=True, python_path=(str(mirror.archive_at_site),)
        ),
        settings=TaskSettings(grace_s=2.0),
    )
    tasks = {"main": {"after": [], "replicas": 2, "interrupted": 50, "failed": 0}}
    with client_journal(mirror.run.journal) as pen:
        pen.append(events.RUN_CREATED, run=RUN, name="run", why="", plan_hash="", tasks=tasks)
        pen.append(events.JOB_INTENDED, task="main", job=1, token=document.token, backend="slurm", resets_budgets=True)
    return dressed(document)


def pull_until(mirror: Mirror, is_true: Callable[[RunFolder], bool]) -> None:
    deadline = time.monotonic() + 300
    while not is_true(mirror.run):
        assert time.monotonic() < deadline, mirror.run.facts()
        mirror.pull(logs=True)


def has_ended(run: RunFolder) -> bool:
    return run.facts().state.is_terminal


def test_a_job_is_queued_followed_and_fetched_over_ssh_and_a_break_loses_nothing(
    slurm: SlurmLab, mirror: Mirror, shell: SshShell
) -> None:
    backend = SlurmBackend(dataclasses.replace(lab_profile(), ssh=LOGIN), shell=shell, push=mirror.send_job)
    rendered = backend.render(job(mirror), mirror.run.jobs / "main-1", Path(mirror.archive_at_site))
    submission = backend.submit(rendered)
    with client_journal(mirror.run.journal) as pen:
        pen.append(
            events.JOB_SUBMITTED, task="main", job=1, backend_id=submission.backend_id, locator=submission.locator
        )
    mirror.push()
    pull_until(mirror, lambda run: any(run.logs.glob("*/main/0.log")))
    assert backend.observe([submission])[submission.backend_id].state is JobState.RUNNING
    slurm.hosts.cut(LOGIN)
    with pytest.raises(UnreachableError):
        mirror.pull(logs=True)
    assert mirror.run.facts().state is State.RUNNING
    Path(mirror.root, "go").touch()
    slurm.hosts.join(LOGIN)
    pull_until(mirror, has_ended)
    mirror.pull(logs=True, is_last=True)
    assert mirror.run.facts().state is State.SUCCEEDED
    for rank in range(2):
        found = (mirror.run.logs / "1" / "main" / f"{rank}.log").read_text()
        assert found == "".join(f"line {number} of {rank}\n" for number in range(1, 9))
    folder = mirror.fetch_outputs("main")
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1"]
    slurm.expect_empty_queue()


def test_a_stop_asked_here_ends_the_job_there(slurm: SlurmLab, mirror: Mirror, shell: SshShell) -> None:
    backend = SlurmBackend(dataclasses.replace(lab_profile(), ssh=LOGIN), shell=shell, push=mirror.send_job)
    backend.submit(backend.render(job(mirror), mirror.run.jobs / "main-1", Path(mirror.archive_at_site)))
    pull_until(mirror, lambda run: any(run.logs.glob("*/main/1.log")))
    with client_journal(mirror.run.journal) as pen:
        pen.append(events.STOP_REQUESTED, tasks={"main": 1}, reason="asked", is_checkpoint_wanted=False)
    mirror.push()
    pull_until(mirror, has_ended)
    assert mirror.run.facts().state is State.STOPPED
    slurm.expect_empty_queue()
