"""What clients conclude about runs on a real Slurm that forgets, hangs or suspends, and what they then do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.system.slurm.slurm_stage import SlurmStage
from tests.system.stage import PYTHON, until
from windlass import Run
from windlass.core.process import send_signal
from windlass.launcher.client import client_journal, rendered_job
from windlass.record import events
from windlass.record.state import State
from windlass.supervise.slurm.job_listing import comment_of, mark_of

pytestmark = pytest.mark.system


def windlass(stage: SlurmStage, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """A command line of its own process, which has seen nothing of this one's queue."""
    env = {**os.environ, "WINDLASS_HOME": str(stage.home.path)}
    if path:
        env["PATH"] = f"{path}{os.pathsep}{env['PATH']}"
    argv = [sys.executable, "-m", "windlass", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, env=env)
    assert done.returncode == 0, done.stderr
    return done


def gated(end: Path) -> list[str]:
    """User code that runs until there is a file."""
    text = f"import os, time\nprint('begun', flush=True)\nwhile not os.path.exists({str(end)!r}): time.sleep(0.1)\n"
    return [PYTHON, "-c", text]


def forget_everything(stage: SlurmStage) -> None:
    """The controller dies, and comes back without any memory of jobs; the nodes do not hear of it for a while."""
    stage.lab.kill_controller()
    state = stage.lab.folder / "state"
    for name in ("job_state", "job_state.old"):
        (state / name).unlink(missing_ok=True)


def num_jobs(run: Run) -> int:
    return len(run.facts.task("main").jobs)


def test_a_job_that_the_controller_forgot_is_not_lost_while_it_lives(slurm_stage: SlurmStage, tmp_path: Path) -> None:
    """slurmd of its node is stopped meanwhile, so that the new controller does not end what it does not know."""
    stage, end = slurm_stage, tmp_path / "end"
    stage.lab.wait_until_remembered()
    run = stage.start(stage.task(gated(end), nodes=1))
    stage.wait_for_line(run, "begun")
    forget_everything(stage)
    for node in stage.lab.nodes:
        stage.lab.signal_daemon(node, signal.SIGSTOP)
    stage.lab.start_controller()
    until(lambda: not stage.queue(), "the controller knows no job")
    shown = windlass(stage, "show", run.id)
    assert "it gave a sign of life" in shown.stderr, shown
    assert "the job is not considered lost" in shown.stderr
    assert run.reconcile() == []
    assert "reconcile" not in shown.stdout
    assert num_jobs(run) == 1
    end.touch()
    until(lambda: run.state.is_terminal, "the supervisor's word ends it", story=lambda: stage.story(run))
    assert run.state is State.SUCCEEDED, stage.story(run)
    assert stage.causes(run) == ["ok"]
    assert stage.queue() == {}
    for node in stage.lab.nodes:
        stage.lab.signal_daemon(node, signal.SIGCONT)


def test_a_job_that_is_gone_with_its_controller_is_lost_when_it_is_silent(
    slurm_stage: SlurmStage, tmp_path: Path
) -> None:
    stage, end = slurm_stage, tmp_path / "end"
    stage.lab.wait_until_remembered()
    run = stage.start(stage.task(gated(end), nodes=1))
    stage.wait_for_line(run, "begun")
    forget_everything(stage)
    stage.freeze(run)
    for pid in list(stage.inhabitants(run)):
        send_signal(pid, signal.SIGKILL)
    stage.lab.start_controller()
    until(lambda: bool(run.reconcile()) or num_jobs(run) > 1, "it is lost, and goes on", story=lambda: stage.story(run))
    end.touch()
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)


def test_what_a_run_that_ended_left_in_the_queue_is_shown_and_cancelled(slurm_stage: SlurmStage) -> None:
    """A second chain, as a client queued it that had declared a living job lost."""
    stage = slurm_stage
    run = stage.start(stage.task("true", nodes=1))
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    stage.wait_until_queue_is_empty()
    token = "0123456789abcdef" * 2
    with client_journal(run.folder.journal) as journal:
        journal.append(events.JOB_INTENDED, task="main", job=2, token=token, backend="slurm", resets_budgets=False)
    _, rendered = rendered_job(run.folder, run.plan, stage.home, "main", 2)
    rendered.folder.mkdir()
    for name, content in rendered.files.items():
        (rendered.folder / name).write_text(content)
    held = [
        stage.lab.command(
            "sbatch",
            "--parsable",
            "--hold",
            f"--comment={comment_of(mark_of(token), n)}",
            "--output=/dev/null",
            "--wrap=true",
        )
        for n in (1, 2)
    ]
    with client_journal(run.folder.journal) as journal:
        journal.append(
            events.JOB_SUBMITTED,
            task="main",
            job=2,
            backend_id=held[0],
            locator=f"slurm://lab/{held[0]}#{mark_of(token)}",
        )
    shown = windlass(stage, "show", run.id).stdout
    assert f"main: has ended, and {', '.join(held)} of job 2 is still queued" in shown
    assert set(stage.queue()) == set(held)
    said = windlass(stage, "ps", "--reconcile").stderr
    assert f"{run.id}: cancelled {', '.join(held)} of job 2 of main" in said
    assert stage.queue() == {}
    assert all(job.is_gone for job in run.facts.task("main").jobs.values())
    assert "needs" not in windlass(stage, "show", run.id).stdout


def test_a_suspended_job_is_shown_as_suspended(slurm_stage: SlurmStage, tmp_path: Path) -> None:
    stage, end = slurm_stage, tmp_path / "end"
    run = stage.start(stage.task(gated(end), nodes=1))
    stage.wait_for_line(run, "begun")
    (job,) = stage.job_ids(run)
    stage.lab.command("scontrol", "suspend", job)
    until(lambda: stage.lab.state(job) == "SUSPENDED", "it is suspended")
    shown = windlass(stage, "show", run.id).stdout
    assert "Slurm has suspended link 1 on n" in shown, shown
    assert "suspended" in windlass(stage, "ps").stdout
    assert run.reconcile() == []
    stage.lab.command("scontrol", "resume", job)
    end.touch()
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert stage.causes(run) == ["ok"]


def test_a_squeue_that_hangs_costs_a_look_five_seconds(slurm_stage: SlurmStage, tmp_path: Path) -> None:
    stage, end = slurm_stage, tmp_path / "end"
    run = stage.start(stage.task(gated(end), nodes=1))
    stage.wait_for_line(run, "begun")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("squeue", "sacct", "sinfo", "scontrol"):
        (folder / name).write_text("#!/bin/sh\nexec sleep 1000\n")
        (folder / name).chmod(0o755)
    quick = time.monotonic()
    windlass(stage, "show", run.id)
    quick = time.monotonic() - quick
    for verb in (("show", run.id), ("ps",)):
        began = time.monotonic()
        said = windlass(stage, *verb, path=str(folder))
        took_s = time.monotonic() - began
        assert "is shown as last recorded" in said.stderr
        assert "did not respond to `squeue" in said.stderr
        assert "within 5 s" in said.stderr
        assert took_s < 5.0 + 3 * quick + 5.0, (took_s, quick)  # a minute before
    end.touch()
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
