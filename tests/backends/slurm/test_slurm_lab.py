"""The backend on real Slurm where faults are: lost replies, a dead controller, refusals, notices, setups that fail."""

from __future__ import annotations

import dataclasses
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.backends.slurm.dressing import dressed, lab_profile
from tests.lab.slurm import SlurmLab
from windlass.backends import JobState, Rendered, Submission
from windlass.backends.site_shell import LocalShell, ShellResult
from windlass.backends.slurm.backend import SlurmBackend
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.record.causes import Cause
from windlass.record.state import State
from windlass.supervise.chain.scheduler import PastLink
from windlass.supervise.job import JobDocument
from windlass.supervise.slurm.job_listing import comment_of, mark_of
from windlass.supervise.slurm.scheduler import SlurmScheduler
from windlass.testing.conformance import JobBench

pytestmark = pytest.mark.system


class LossyShell(LocalShell):
    """Loses the answers of sbatch: the job is taken, and nobody hears of it."""

    num_lost = 0

    def run(self, argv: Sequence[str], **options: Any) -> ShellResult:
        answer = super().run(argv, **options)
        if argv[0] == "sbatch" and self.num_lost:
            self.num_lost -= 1
            raise UnreachableError("the reply was lost")
        return answer


@pytest.fixture
def bench(at_slurm: SlurmLab, tmp_path: Path) -> JobBench:
    folder = tmp_path / "lab-00000000"
    folder.mkdir()
    return JobBench(folder, dressed)


@pytest.fixture
def backend(at_slurm: SlurmLab) -> SlurmBackend:
    return SlurmBackend(lab_profile())


def changed(bench: JobBench, backend: SlurmBackend, document: JobDocument, **queue: object) -> Rendered:
    """What is submitted for a job that asks for something else."""
    asked = dataclasses.replace(document.queue, **queue)  # type: ignore[arg-type]
    return bench.render(backend, dataclasses.replace(document, queue=asked))


def until(is_true: Callable[[], bool], what: str, timeout_s: float = 300.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.1)


def state(backend: SlurmBackend, job: Submission) -> JobState:
    return backend.observe([job])[job.backend_id].state


def test_lost_replies_make_one_chain(at_slurm: SlurmLab, bench: JobBench) -> None:
    shell = LossyShell()
    shell.num_lost = 1
    backend = SlurmBackend(lab_profile(), shell=shell)
    rendered = bench.render(backend, bench.job("echo x >> marks; until [ -e go ]; do sleep 0.1; done"))
    with pytest.raises(UnreachableError, match="the reply was lost"):
        backend.submit(rendered)
    job = backend.submit(rendered)
    assert len(at_slurm.queued()) == 2
    (bench.folder / "go").touch()
    assert bench.wait_for_end() is State.SUCCEEDED
    assert (bench.folder / "marks").read_text() == "x\n"
    until(lambda: state(backend, job) is JobState.GONE, "the chain to be gone")
    assert backend.submit(rendered) == job


def test_clients_killed_at_random_moments_make_one_job_each(
    at_slurm: SlurmLab, tmp_path: Path, backend: SlurmBackend
) -> None:
    benches = []
    for number in range(10):
        (tmp_path / f"killed-{number:08}").mkdir()
        benches.append(JobBench(tmp_path / f"killed-{number:08}", dressed))
        rendered = benches[-1].render(backend, benches[-1].job("echo x >> marks"))
        pid = os.fork()
        if pid == 0:
            backend.submit(rendered)
            os._exit(0)
        time.sleep(random.uniform(0.0, 0.03))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        backend.submit(rendered)
    assert {bench.wait_for_end() for bench in benches} == {State.SUCCEEDED}
    at_slurm.expect_empty_queue()
    assert {(bench.folder / "marks").read_text() for bench in benches} == {"x\n"}


def test_a_late_duplicate_leaves_before_user_code(at_slurm: SlurmLab, bench: JobBench, backend: SlurmBackend) -> None:
    rendered = bench.render(backend, bench.job("echo x >> marks"))
    job = backend.submit(rendered)
    late = at_slurm.command(*rendered.argv)
    assert bench.wait_for_end() is State.SUCCEEDED
    at_slurm.expect_empty_queue()
    assert at_slurm.state(late) in ("COMPLETED", "CANCELLED")
    assert (bench.folder / "marks").read_text() == "x\n"
    assert backend.observe([job])[job.backend_id].cause == "ok"


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        ({"partition": "mian"}, "no partition `mian`"),
        ({"gpus_per_node": 9}, "9 GPUs"),
        ({"memory_bytes": 1 << 40}, "1TiB memory"),
        ({"nodelist": ("n9",)}, "a node of n9"),
        ({"constraint": "quick"}, "feature `quick`"),
        ({"options": ("--no-such=1",)}, "invalid option"),
    ],
)
def test_what_slurm_refuses_is_refused_in_words(
    at_slurm: SlurmLab, bench: JobBench, backend: SlurmBackend, queue: dict[str, object], words: str
) -> None:
    with pytest.raises(PreconditionError, match=words):
        backend.submit(changed(bench, backend, bench.job("true"), **queue))
    assert at_slurm.queued() == {}


def test_accounts_and_qos_that_do_not_exist_are_refused(
    slurm_accounting: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", slurm_accounting.env["SLURM_CONF"])
    (tmp_path / "lab-00000000").mkdir()
    bench, backend = JobBench(tmp_path / "lab-00000000", dressed), SlurmBackend(lab_profile(has_accounting=True))
    with pytest.raises(PreconditionError, match="account `nobody`"):
        backend.submit(changed(bench, backend, bench.job("true"), account="nobody"))
    with pytest.raises(PreconditionError, match="no QOS `fast`"):
        backend.submit(changed(bench, backend, bench.job("true", job=2), qos="fast"))


def test_a_dead_controller_is_unreachable_and_nothing_is_doubled(
    at_slurm: SlurmLab, bench: JobBench, backend: SlurmBackend
) -> None:
    rendered = bench.render(backend, bench.job("echo x >> marks"))
    at_slurm.kill_controller()
    with pytest.raises(UnreachableError, match="Slurm at lab does not respond"):
        backend.submit(rendered)
    at_slurm.start_controller()
    job = backend.submit(rendered)
    assert bench.wait_for_end() is State.SUCCEEDED
    until(lambda: state(backend, job) is JobState.GONE, "the chain to be gone")
    assert (bench.folder / "marks").read_text() == "x\n"


def test_a_job_that_waits_says_why_and_can_be_cancelled(
    at_slurm: SlurmLab, bench: JobBench, backend: SlurmBackend
) -> None:
    blocker = at_slurm.command(
        "sbatch", "--parsable", "--output=/dev/null", "--nodes=4", "--exclusive", "--wrap", "sleep 300"
    )
    at_slurm.wait_for_state(blocker, "RUNNING")
    job = backend.submit(bench.render(backend, bench.job("echo x >> marks")))
    until(lambda: "it is next" in backend.explain(job), "a reason")
    assert state(backend, job) is JobState.QUEUED
    backend.cancel(job)
    assert backend.observe([job])[job.backend_id].state is JobState.GONE
    assert set(at_slurm.queued()) == {blocker}
    at_slurm.command("scancel", blocker)
    at_slurm.expect_empty_queue()
    assert not (bench.folder / "marks").exists()


def test_a_walltime_above_the_limit_is_told_as_never(
    at_slurm: SlurmLab, bench: JobBench, backend: SlurmBackend
) -> None:
    job = backend.submit(changed(bench, backend, bench.job("true"), partition="short", time_s=7200.0))
    until(lambda: "so it never starts" in backend.explain(job), "a reason")
    assert backend.observe([job])[job.backend_id].cause == "unschedulable"
    backend.cancel(job)


def test_a_module_that_does_not_load_ends_the_task_by_its_name(
    at_slurm: SlurmLab, bench: JobBench, backend: SlurmBackend, tmp_path: Path
) -> None:
    init = tmp_path / "init.sh"
    init.write_text('module() { echo "no module called $2" >&2; return 1; }\n')
    rendered = changed(bench, backend, bench.job("echo x >> marks"), setup=(f". {init}", "module load cuda/99"))
    job = backend.submit(rendered)
    assert bench.wait_for_end() is State.FAILED
    end = bench.facts().tasks["main"].end
    assert end is not None
    assert end[1:3] == ("setup-failed", "`module load cuda/99` failed: no module called cuda/99")
    at_slurm.expect_empty_queue()
    assert not (bench.folder / "marks").exists()
    assert state(backend, job) is JobState.GONE


def test_a_site_without_python_is_told_and_its_queue_emptied(
    at_slurm: SlurmLab, bench: JobBench, backend: SlurmBackend
) -> None:
    job = backend.submit(changed(bench, backend, bench.job("true"), python="/nowhere/python3"))
    at_slurm.expect_empty_queue()
    found = backend.observe([job])[job.backend_id]
    assert (found.state, found.cause) == (JobState.GONE, "setup-failed")
    assert found.detail == "there is no `/nowhere/python3` on this node"


def test_a_notice_during_the_setup_does_not_kill_the_script(
    at_slurm: SlurmLab, bench: JobBench, backend: SlurmBackend, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    job = backend.submit(changed(bench, backend, bench.job("true"), setup=(f"touch {begun}; sleep 5",)))
    until(begun.exists, "the setup to begin")
    at_slurm.command("scancel", "--signal=USR1", "--batch", job.backend_id)
    assert bench.wait_for_end() is State.SUCCEEDED


def test_nothing_of_the_users_shell_reaches_the_job(
    at_slurm: SlurmLab, bench: JobBench, backend: SlurmBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MY_SECRET", "SBATCH_PARTITION", "SLURM_JOB_ID", "SQUEUE_FORMAT", "PYTHONPATH"):
        monkeypatch.setenv(name, "canary")
    job = backend.submit(changed(bench, backend, bench.job("sleep 600"), setup=("env | sort > $folder/env",)))
    bench.wait_until(lambda facts: facts.state is State.RUNNING)
    assert "canary" not in (job.folder / "env").read_text()
    assert state(backend, job) is JobState.RUNNING
    shown = str(at_slurm.command("scontrol", "show", "job", job.backend_id))
    assert "canary" not in shown
    assert JobDocument.read(job.folder / "job.json").token not in shown
    backend.cancel(job)


def test_the_scheduler_of_a_running_job_tends_its_links(
    at_slurm: SlurmLab, bench: JobBench, backend: SlurmBackend
) -> None:
    job = backend.submit(bench.render(backend, bench.job("sleep 600")))
    bench.wait_until(lambda facts: facts.state is State.RUNNING)
    document = JobDocument.read(job.folder / "job.json")
    slurm = SlurmScheduler(document, environ={"SLURM_JOB_ID": job.backend_id, **at_slurm.env, "PATH": "/usr/bin:/bin"})
    until(lambda: set(slurm.queued()) == {1, 2, 3}, "two links behind the one that runs")
    assert slurm.queue(2, []) == slurm.queued()[2]
    slurm.avoid([slurm.queued()[3]], ["n3", "n4"])
    slurm.avoid([slurm.queued()[3]], ["n2"])
    assert at_slurm.job(slurm.queued()[3])["ExcNodeList"] == "n2,n3,n4"
    assert slurm.explain_notice() == (Cause.UNKNOWN, "")
    third = slurm.queued()[3]
    slurm.cancel([third])
    slurm.cancel([third])
    chain, name = document.chain, document.queue.name
    assert slurm.how_ended(PastLink(third, float("inf"), chain.mark, name, 3))[0] is Cause.CANCELLED
    assert slurm.how_ended(PastLink(third, float("inf"), chain.mark, name, 2))[0] is Cause.UNKNOWN
    backend.cancel(job)
    assert slurm.queued() == {}
    assert slurm.how_ended(PastLink(job.backend_id, float("inf"), chain.mark, name, 1))[0] is Cause.CANCELLED


def test_slurm_says_why_a_job_must_go_and_how_it_ended(at_slurm: SlurmLab, bench: JobBench) -> None:
    mark = mark_of("token")
    comment = f"--comment={comment_of(mark, 1)}"
    low = at_slurm.command(
        "sbatch",
        "--parsable",
        "--output=/dev/null",
        "--partition=low",
        "--nodes=4",
        "--no-requeue",
        comment,
        "--wrap",
        "sleep 300",
    )
    at_slurm.wait_for_state(low, "RUNNING")
    job = bench.job("true")
    job = dataclasses.replace(job, chain=dataclasses.replace(job.chain, mark=mark))
    slurm = SlurmScheduler(job, environ={"SLURM_JOB_ID": low, **at_slurm.env, "PATH": "/usr/bin:/bin"})
    assert slurm.explain_notice() == (Cause.UNKNOWN, "")
    high = at_slurm.command(
        "sbatch", "--parsable", "--output=/dev/null", "--nodes=4", "--exclusive", comment, "--wrap", "sleep 300"
    )
    until(lambda: slurm.explain_notice()[0] is Cause.PREEMPTED, "a preemption")
    at_slurm.wait_for_state(low, "PREEMPTED")
    assert slurm.how_ended(PastLink(low, float("inf"), mark))[0] is Cause.PREEMPTED
    at_slurm.command("scancel", high)
    at_slurm.wait_for_state(high, "CANCELLED")
    assert slurm.how_ended(PastLink(high, float("inf"), mark))[0] is Cause.CANCELLED
