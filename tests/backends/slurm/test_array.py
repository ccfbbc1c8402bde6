"""Many jobs as one job array: one sbatch, every job still a job of its own."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.backends.slurm.dressing import dressed, lab_profile
from tests.backends.slurm.fake_shell import FakeShell, listing
from tests.backends.slurm.test_backend import NOBODY, Numbers
from tests.backends.slurm.test_render import ARCHIVE, document
from tests.lab.slurm import SlurmLab
from windlass.backends import CanSubmitMany, JobState, Rendered
from windlass.backends.site_shell import ShellResult
from windlass.backends.slurm.backend import SlurmBackend
from windlass.backends.slurm.render import array_script
from windlass.backends.slurm.version import SlurmVersion
from windlass.core.errors import UnreachableError
from windlass.record.state import State
from windlass.supervise.job import JobPaths
from windlass.supervise.slurm.scheduler import comment_of, mark_of
from windlass.testing.conformance import JobBench

GROUP = mark_of("t0t1t2")


def jobs(backend: SlurmBackend, folder: Path, **changes: Any) -> list[Rendered]:
    """Three jobs of one shape; `changes` are of the last."""
    found = []
    for number in range(3):
        job = document(name=f"run{number}", **(changes if number == 2 else {}))
        job = dataclasses.replace(job, token=f"t{number}", paths=JobPaths(str(folder / f"run{number}")))
        found.append(backend.render(job, folder / f"run{number}" / "jobs" / "train-1", ARCHIVE))
    return found


@pytest.fixture
def shell(tmp_path: Path) -> FakeShell:
    nothing = ShellResult(0, "", "")
    return FakeShell(f"site-{tmp_path}", sbatch=Numbers(), squeue=listing(), scontrol=nothing, sh=nothing)


def test_jobs_of_one_shape_are_one_question(shell: FakeShell, tmp_path: Path) -> None:
    backend = SlurmBackend(lab_profile(), shell=shell)
    assert isinstance(backend, CanSubmitMany)
    rendered = jobs(backend, tmp_path)
    found = backend.submit_many(rendered)
    assert [job.backend_id for job in found] == ["11_1", "11_2", "11_3"]
    assert [job.folder for job in found] == [job.folder for job in rendered]
    assert backend.submit_many(rendered) == found
    assert backend.submit(rendered[1]) == found[1]
    first = rendered[0].folder
    assert shell.asked[0] == ("sbatch", "--parsable", f"--comment={comment_of(GROUP, 1)}", str(first / "array.sbatch"))
    assert len(shell.asked) == 1
    assert "#SBATCH --array=1-3\n" in (first / "array.sbatch").read_text()
    assert (first / "array.txt").read_text().splitlines()[1] == f"run1 {mark_of('t1')} {rendered[1].folder}"


def test_an_array_waits_for_what_its_jobs_wait_for(shell: FakeShell, tmp_path: Path) -> None:
    backend = SlurmBackend(lab_profile(bin="/opt/slurm/bin/"), shell=shell)
    rendered = [
        backend.render(
            dataclasses.replace(
                document(name=f"run{n}", hold=True, build_job="7"),
                token=f"t{n}",
                paths=JobPaths(str(tmp_path / f"run{n}")),
            ),
            tmp_path / f"run{n}" / "jobs" / "train-1",
            ARCHIVE,
        )
        for n in range(3)
    ]
    backend.submit_many(rendered)
    (asked,) = shell.asked
    assert asked[0] == "/opt/slurm/bin/sbatch"
    assert asked[3:] == ("--hold", "--dependency=afterany:7", str(rendered[0].folder / "array.sbatch"))


@pytest.mark.parametrize(("num_refused", "code"), [(0, 0), (2, 0), (99, 76)])
def test_a_task_runs_only_under_its_own_name(tmp_path: Path, num_refused: int, code: int) -> None:
    programs, notes = tmp_path / "bin", tmp_path / "notes"
    programs.mkdir()
    scontrol = f'[ "$(grep -c scontrol {notes})" -gt {num_refused} ] || {{ echo "it is away" >&2; exit 1; }}'
    srun = f'printf %s "$WINDLASS_BATCH_OUTPUT" > {tmp_path}/output'
    for name, more in {"srun": srun, "python3": "", "sleep": "", "scontrol": scontrol}.items():
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {notes}\n{more}\n')
        (programs / name).chmod(0o755)
    (tmp_path / "array.txt").write_text(f"a b /a\nmine {mark_of('t')} /runs/it is mine\n")
    text = array_script(document(), "x.array", tmp_path, 2, ARCHIVE, SlurmVersion(year=22, month=5))
    (tmp_path / "script").write_text(text)
    env = {"PATH": f"{programs}:/usr/bin:/bin", "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "2"}
    done = subprocess.run(["/bin/sh", str(tmp_path / "script")], env=env, capture_output=True, text=True)
    assert done.returncode == code
    said = notes.read_text().splitlines()
    assert said[0] == f"scontrol update JobId=9_2 Name=mine Comment={comment_of(mark_of('t'), 1)}"
    words = "the job could not take its name in Slurm: it is away"
    failed = f"python3 -I -S {ARCHIVE} failed /runs/it is mine 1 setup-failed {words}"
    assert said[-1] == failed if code else said[-1].endswith("link /runs/it is mine 1")
    assert sum(line.startswith("srun") for line in said) == (0 if code else 1)
    assert code or (tmp_path / "output").read_text() == f"{tmp_path}/slurm-9_2.out"
    assert [line for line in said if line.startswith("sleep")] == [
        f"sleep {1 << n}" for n in range(min(num_refused, 6))
    ]


@pytest.mark.parametrize("changes", [{"num_replicas": 4, "num_queued": 1}, {"gpus_per_node": 4, "num_queued": 1}])
def test_a_job_of_another_shape_is_queued_by_itself(shell: FakeShell, tmp_path: Path, changes: dict[str, Any]) -> None:
    backend = SlurmBackend(lab_profile(), shell=shell)
    found = backend.submit_many(jobs(backend, tmp_path, **changes))
    assert [job.backend_id for job in found] == ["11_1", "11_2", "12"]


def test_a_lost_reply_finds_the_array_again(shell: FakeShell, tmp_path: Path) -> None:
    backend = SlurmBackend(lab_profile(), shell=shell)
    rendered = jobs(backend, tmp_path)
    shell.replies["sbatch"] = NOBODY
    with pytest.raises(UnreachableError):
        backend.submit_many(rendered)
    waiting = [f"9_{task}" for task in (2, 3)]
    rows = [[number, "PENDING", "Priority", "N/A", "N/A", "", "x", comment_of(GROUP, 1)] for number in waiting]
    shell.replies.update(sbatch=Numbers(), squeue=listing(*rows))
    assert [job.backend_id for job in backend.submit_many(rendered)] == ["9_1", "9_2", "9_3"]
    assert shell.count("sbatch") == 1


def test_tasks_are_told_apart_while_they_wait_and_when_they_run(shell: FakeShell, tmp_path: Path) -> None:
    backend = SlurmBackend(lab_profile(), shell=shell)
    found = backend.submit_many(jobs(backend, tmp_path))
    shell.replies["squeue"] = listing(
        ["11_1", "RUNNING", "None", "N/A", "N/A", "n1", "run0", comment_of(mark_of("t0"), 1)],
        ["11_2", "PENDING", "Priority", "N/A", "N/A", "", "x", comment_of(GROUP, 1)],
        ["11_3", "CANCELLED", "None", "N/A", "N/A", "", "x", comment_of(GROUP, 1)],
    )
    seen = backend.observe(found)
    states = [seen[job.backend_id].state for job in found]
    assert states == [JobState.RUNNING, JobState.QUEUED, JobState.GONE]
    assert backend.explain(found[0]) == ""
    assert backend.explain(found[1]).startswith("jobs with a higher priority")


@pytest.mark.system
def test_an_array_runs_every_job_and_its_links(at_slurm: SlurmLab, tmp_path: Path) -> None:
    backend, benches = SlurmBackend(lab_profile()), []
    for number in range(3):
        folder = tmp_path / f"array-0000000{number}"
        folder.mkdir()
        benches.append(JobBench(folder, dressed))
        benches[-1].archive = benches[0].archive
    line = f"echo {{}} >> marks; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    rendered = [bench.render(backend, bench.job(line.format(n))) for n, bench in enumerate(benches)]
    found = backend.submit_many(rendered)
    array = {job.backend_id.partition("_")[0] for job in found}
    assert len(array) == 1
    benches[0].wait_until(lambda facts: facts.state is State.RUNNING)
    assert backend.observe(found)[found[0].backend_id].state is JobState.RUNNING
    (tmp_path / "go").touch()
    assert [bench.wait_for_end() for bench in benches] == [State.SUCCEEDED] * 3
    at_slurm.expect_empty_queue()
    assert [(bench.folder / "marks").read_text() for bench in benches] == ["0\n", "1\n", "2\n"]
    for job in found:
        backend.cancel(job)
    assert {seen.cause for seen in backend.observe(found).values()} == {"ok"}
