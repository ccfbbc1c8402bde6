"""Chains of links: over any walltime, with results as if nothing had happened, and nothing left in the queue."""

from __future__ import annotations

import random

import pytest

from tests.system.slurm.slurm_stage import SlurmStage
from tests.system.stage import PYTHON, until
from windlass import Run
from windlass.record.state import State

pytestmark = pytest.mark.system

_NUM_STEPS = 400
_PAUSE_S = 0.25
"""More steps than four links of `per_job` 20 s have time for, on any machine, when the second has twice as long."""


def trained(stage: SlurmStage, num_steps: int = _NUM_STEPS, pause_s: float = _PAUSE_S) -> list[str]:
    return [PYTHON, "trainer.py", str(num_steps), str(pause_s)]


def digests(run: Run) -> set[str]:
    return {path.read_text() for path in run.output("main").glob("digest-*")}


def begun(run: Run) -> int:
    """How many links of the newest job have begun."""
    task = run.facts.task("main")
    job = task.jobs.get(task.newest_job)
    return sum(1 for link in job.links.values() if link.started_at) if job is not None else 0


def wait_for_link(stage: SlurmStage, run: Run, link: int, timeout_s: float) -> None:
    """Wait until user code of a link has made a step, without looking at the run as a client would."""

    def runs() -> bool:
        facts = run.facts
        if any(a.link >= link and a.started_at for a in facts.task("main").attempts.values()):
            return True
        assert not facts.state.is_terminal, f"{run.id} {facts.state} before link {link}:\n{stage.story(run)}"
        return False

    until(runs, f"link {link} runs", timeout_s, story=lambda: stage.story(run))


def test_a_chain_of_five_links_ends_as_if_nothing_had_happened(slurm_stage: SlurmStage) -> None:
    """Link 1 and 4 end by `per_job`, 2 by a real walltime, 3 by a preemption; supervisors and ranks are killed between."""
    stage, die = slurm_stage, random.Random(3)
    quick = stage.start(stage.task(trained(stage, pause_s=0.0), nodes=2), name="whole", on="lab/main")
    assert stage.end(quick) is State.SUCCEEDED
    stage.starts.unlink()
    spec = stage.task(trained(stage), nodes=2, cpus=2)
    spec["limit"] = {"time": "600s", "per_job": "20s"}
    run = stage.start(spec, name="chain", on="lab/low")
    wait_for_link(stage, run, 1, 300)
    for _ in range(2):
        stage.kill_one(run, die)
    wait_for_link(stage, run, 2, 300)
    stage.freeze(run)  # nobody is left to mind the time: Slurm has to
    time_over = "EndTime=now+5seconds"  # Slurm takes none that is past when it hears of it
    stage.lab.command("scontrol", "update", f"JobId={stage.job_ids(run)[1]}", time_over)
    wait_for_link(stage, run, 3, 300)
    stage.lab.command(
        "sbatch", "--partition=main", "--nodes=4", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 3"
    )
    wait_for_link(stage, run, 4, 300)
    assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
    assert digests(run) == digests(quick)
    assert len(digests(run)) == 1
    assert begun(run) >= 5
    causes = [cause for cause in stage.causes(run) if cause != "killed"]
    before = causes[: causes.index("preempted")]  # on a busy machine link 3 may have used up its time as well
    assert before in (["walltime"] * 2, ["walltime"] * 3), causes
    assert stage.doubled() == []
    stage.wait_until_queue_is_empty()
    assert stage.survivors(run) == {}


def test_a_run_that_fails_again_and_again_does_not_chain_on(slurm_stage: SlurmStage) -> None:
    spec = slurm_stage.task("sleep 0.2; exit 75", nodes=2)
    spec["limit"] = {"time": "10m", "per_job": "1m"}
    run = slurm_stage.start(spec)
    assert slurm_stage.end(run) is State.FAILED, slurm_stage.story(run)
    assert run.facts.cause == "no-progress"
    assert begun(run) <= 3
    slurm_stage.wait_until_queue_is_empty()


def test_links_that_die_at_once_do_not_chain_more_than_three_times(slurm_stage: SlurmStage) -> None:
    """Every link is cancelled from outside the moment its code starts; the chain is not to go on for ever."""
    spec = slurm_stage.task("kill -KILL $(ps -o ppid= -p $PPID) $PPID; sleep 60", nodes=1)
    spec["limit"] = {"time": "10m", "per_job": "1m"}
    run = slurm_stage.start(spec)
    assert slurm_stage.end(run, 300) is State.FAILED, slurm_stage.story(run)
    assert run.facts.cause == "no-progress"
    assert begun(run) <= 4
    slurm_stage.wait_until_queue_is_empty()


def test_a_finished_run_never_chains(slurm_stage: SlurmStage) -> None:
    spec = slurm_stage.task("echo done", nodes=2)
    spec["limit"] = {"time": "10m", "per_job": "1m"}
    run = slurm_stage.start(spec)
    assert slurm_stage.end(run) is State.SUCCEEDED
    assert begun(run) == 1
    slurm_stage.wait_until_queue_is_empty()
    assert begun(run) == 1
    assert len(slurm_stage.attempts(run)) == 1


def test_the_number_of_links_is_limited(slurm_stage: SlurmStage) -> None:
    spec = slurm_stage.task(trained(slurm_stage, 10_000), nodes=1)
    spec["limit"] = {"time": "10m", "per_job": "4s", "jobs": 2}
    run = slurm_stage.start(spec)
    assert slurm_stage.end(run) is State.FAILED, slurm_stage.story(run)
    end = run.facts.task("main").end
    assert end is not None
    assert end[1:3] == ("walltime", "all 2 jobs of its chain are used up")
    assert begun(run) == 2
    slurm_stage.wait_until_queue_is_empty()
