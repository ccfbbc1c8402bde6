"""Slurm's daemons above a replica: who notices that one was killed, and ends the job that nobody would end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.record import events
from windlass.record.journal import read_journal
from windlass.supervise.chain.scheduler import SchedulerError
from windlass.supervise.gang.incarnation import START_MARK
from windlass.supervise.job import ChainConfig, JobDocument, JobPaths, ReplicaCommand
from windlass.supervise.slurm import step_daemon
from windlass.supervise.slurm.scheduler import SlurmScheduler
from windlass.supervise.slurm.step_daemon import StepDaemons


def folder_of_job(tmp_path: Path) -> Path:
    job = JobDocument(
        *("r-00000000", "main", 1, "token", ReplicaCommand(("true",), cwd=str(tmp_path)), JobPaths(str(tmp_path))),
        chain=ChainConfig(scheduler="slurm", mode="successor"),
    )
    (tmp_path / "journal").mkdir()
    (tmp_path / "job.json").write_text(json.dumps(job.to_data()))
    return tmp_path


def test_an_error_of_the_scheduler_has_its_code() -> None:
    assert SchedulerError("no answer").code == "scheduler-failed"


def states(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """What Slurm says of the job, one answer a question; `?`: it does not answer."""
    left = list(answers)

    def end_this_start(_: SlurmScheduler) -> str:
        answer = left.pop(0)
        if answer == "?":
            raise SchedulerError("no answer")
        return answer

    monkeypatch.setattr(SlurmScheduler, "end_this_start", end_this_start)
    monkeypatch.setattr(step_daemon, "_PAUSE_S", 0.0)
    return left


def test_a_job_whose_daemons_live_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = states(monkeypatch, "RUNNING")
    StepDaemons({START_MARK: f"{os.uname().nodename}/{os.getpid()}/1/1"}).end_abandoned_job(tmp_path, 0, "7.0")
    assert left == ["RUNNING"]


def test_a_job_whose_step_lost_its_daemon_is_cancelled_until_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, left = folder_of_job(tmp_path), states(monkeypatch, "?", "RUNNING", "COMPLETING", "", "never asked")
    daemons = StepDaemons({})
    monkeypatch.setattr(step_daemon, "parent_of", lambda pid: 1)
    assert daemons.is_step_abandoned
    daemons.end_abandoned_job(folder, 1, "7.0")
    assert left == ["never asked"]
    (note,) = [record for record in read_journal(tmp_path / "journal") if record.kind == events.NOTE]
    assert note.data["message"] == "a slurmstepd of its job was killed, so the job was cancelled at its end"
    assert note.writer == "main.1.7.0"


def test_a_job_whose_batch_script_lost_its_daemon_is_left_once_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step has its daemon, which Slurm's end of the job waits for, and so for this process."""
    folder, left = folder_of_job(tmp_path), states(monkeypatch, "RUNNING", "COMPLETING", "never asked")
    monkeypatch.setattr(step_daemon, "_NAME", Path("/proc/self/comm").read_text().strip())
    daemons = StepDaemons({START_MARK: f"{os.uname().nodename}/{os.getpid()}/1/1"})
    assert [daemons.is_batch_abandoned] == [False]
    monkeypatch.setattr(step_daemon, "is_alive", lambda process: False)
    assert daemons.is_batch_abandoned
    daemons.end_abandoned_job(folder, 0, "7.0")
    assert left == ["never asked"]


@pytest.mark.parametrize("mark", ["", "elsewhere/1/1/1", "nonsense"])
def test_on_other_nodes_nothing_is_known_of_the_batch_script(mark: str) -> None:
    assert not StepDaemons({START_MARK: mark}).is_batch_abandoned


def test_a_child_of_the_task_sees_too_that_its_step_has_no_daemon(tmp_path: Path) -> None:
    """A supervisor is a child of the guard, which is the task; here the daemon is a process that leaves."""
    code = (
        "import os, sys, time\n"
        "from windlass.supervise.slurm.step_daemon import StepDaemons\n"
        "if os.fork():\n"
        "    time.sleep(0.5); os._exit(0)\n"
        "daemons = StepDaemons({})\n"
        "if not os.fork():\n"
        "    before = daemons.is_step_abandoned\n"
        "    while not daemons.is_step_abandoned:\n"
        "        time.sleep(0.01)\n"
        "    print(before, True, flush=True); os._exit(0)\n"
        "os.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False True\n"
