"""What a job concludes when programs of Slurm itself die: the controller, srun, the daemons of a step; and when a person
cancels it. With accounting, which may name who cancelled a job, and without.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.system.slurm.slurm_stage import SlurmStage
from tests.system.stage import PYTHON, living, until
from windlass import Run
from windlass.core.process import send_signal
from windlass.record.state import State

pytestmark = pytest.mark.system

NUM_STEPS, PAUSE_S = 60, 0.25


@pytest.fixture(params=["slurm_stage", "accounting_stage"])
def either_stage(request: pytest.FixtureRequest) -> SlurmStage:
    """A stage without accounting, and one with it."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, SlurmStage)
    return found


def start(stage: SlurmStage, num_steps: int = NUM_STEPS) -> Run:
    """A training on two nodes, with links enough."""
    spec = stage.task([PYTHON, "trainer.py", str(num_steps), str(PAUSE_S), "0.02"], nodes=2)
    spec["limit"] = {"time": "30m", "per_job": "10m"}
    return stage.start(spec)


def expect_success(stage: SlurmStage, run: Run, *causes: str) -> None:
    """The run goes on and succeeds, each attempt ended by its true cause, and nothing of it is left."""
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    assert stage.causes(run) == [*causes, "ok"], stage.story(run)
    assert stage.doubled() == []
    expect_nothing_left(stage, run)


def expect_nothing_left(stage: SlurmStage, run: Run) -> None:
    """No job in the queue and no process on any node: also no srun."""
    stage.wait_until_queue_is_empty()
    assert stage.survivors(run) == {}


def sruns(run: Run) -> list[int]:
    """The srun that is the job's batch script, and its child."""
    return [pid for pid, line in living(str(run.folder.path)).items() if line.split(" ")[0].endswith("srun")]


def step_daemons(stage: SlurmStage, step: str) -> list[int]:
    """Each slurmstepd of a step such as `12.0` or `12.batch`, over all nodes."""
    found = []
    for node in stage.lab.nodes:
        for pid in stage.lab.hosts.processes(node):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if f"slurmstepd: [{step}]".encode() in line:
                found.append(pid)
    return found


# --- the controller --------------------------------------------------------------------------------------------------


def test_a_controller_that_forgot_that_a_job_runs_interrupts_it_at_most(either_stage: SlurmStage) -> None:
    """It brings the job back as one that waits, ends what runs of it, and starts it again or cancels it."""
    stage, lab = either_stage, either_stage.lab
    nodes = "nodename=" + ",".join(lab.nodes)
    lab.command("scontrol", "update", nodes, "state=drain", "reason=wait")
    run = start(stage)
    lab.wait_until_remembered()
    saved = lab.folder / "state" / "job_state"
    before = saved.read_bytes()
    lab.command("scontrol", "update", nodes, "state=resume")
    stage.wait_for_line(run, "step 3")
    lab.kill_controller()
    saved.write_bytes(before)
    time.sleep(3.0)
    lab.start_controller()
    lab.command("scontrol", "update", nodes, "state=resume", check=False)  # it may have forgotten that, too
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)
    *interrupted, last = stage.causes(run)
    assert (set(interrupted), last) == ({"killed"}, "ok"), stage.story(run)
    assert stage.doubled() == []
    expect_nothing_left(stage, run)


# --- srun ------------------------------------------------------------------------------------------------------------


def test_a_killed_srun_costs_one_link(either_stage: SlurmStage) -> None:
    """As when the node is out of memory: Slurm ends the job, and calls it FAILED, JobLaunchFailure."""
    run = start(either_stage)
    either_stage.wait_for_line(run, "step 6")
    for pid in sruns(run):
        send_signal(pid, signal.SIGKILL)
    expect_success(either_stage, run, "killed")
    assert either_stage.ends(run)[0].message == "its batch script was killed (Slurm: FAILED, JobLaunchFailure)"


def test_a_killed_srun_is_told_by_the_next_link_where_the_first_cannot(either_stage: SlurmStage) -> None:
    """Supervisors that hang say nothing of the end of their attempt."""
    run = start(either_stage)
    either_stage.wait_for_line(run, "step 6")
    either_stage.freeze(run)
    for pid in sruns(run):
        send_signal(pid, signal.SIGKILL)
    expect_success(either_stage, run, "killed")
    assert either_stage.ends(run)[0].message == "its batch script was killed (Slurm: FAILED, JobLaunchFailure)"


# --- the daemons of a step -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["first", "last", "all", "batch"])
def test_a_job_whose_step_daemon_was_killed_is_gone_after_the_run(either_stage: SlurmStage, which: str) -> None:
    """Nobody tells Slurm that the tasks have ended, and srun waits for them."""
    stage = either_stage
    run = start(stage)
    stage.wait_for_line(run, "step 6")
    job_id = stage.job_ids(run)[0]
    found = step_daemons(stage, f"{job_id}.batch" if which == "batch" else f"{job_id}.0")
    assert len(found) == (1 if which == "batch" else 2)
    for pid in {"first": found[:1], "last": found[-1:]}.get(which, found):
        send_signal(pid, signal.SIGKILL)
    expect_success(stage, run)
    assert any("slurmstepd" in note[4] for note in run.facts.notes)


# --- a replica ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_a_replica_all_of_whose_processes_were_killed_is_no_lost_node(either_stage: SlurmStage, rank: int) -> None:
    """Slurm does not start a task again, so the next link goes on."""
    stage = either_stage
    run = start(stage)
    stage.wait_for_line(run, "step 6")
    newest = run.facts.task("main").newest_attempt
    assert newest is not None
    here = set(stage.lab.hosts.processes(newest.replicas[rank].host))
    for pid in here.intersection(stage.inhabitants(run)):
        send_signal(pid, signal.SIGKILL)
    expect_success(stage, run, "killed")
    assert stage.ends(run)[0].message == f"killed from outside: all processes of replica {rank}"


# --- a person --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [(), ("--signal=KILL", "--full")])
def test_a_person_who_cancels_a_link_stops_the_run(either_stage: SlurmStage, how: tuple[str, ...]) -> None:
    """By a signal that lets the job say so itself, and by one that leaves it to the next link."""
    stage = either_stage
    run = start(stage, 100_000)
    stage.wait_for_line(run, "step 3")
    stage.lab.command("scancel", *how, stage.job_ids(run)[0])
    assert stage.end(run) is State.STOPPED, stage.story(run)
    assert stage.causes(run) == ["cancelled"]
    until(lambda: run.state.is_terminal, "it stays stopped")
    expect_nothing_left(stage, run)


@pytest.mark.parametrize("has_next", [True, False])
def test_a_person_who_cancels_a_job_without_step_daemons_stops_the_run(
    either_stage: SlurmStage, has_next: bool
) -> None:
    """Slurm calls the job over at once, and no process hears of it: the next link says it, or the leader has to ask."""
    stage = either_stage
    run = start(stage, 100_000)
    stage.wait_for_line(run, "step 3")
    job_id = stage.job_ids(run)[0]
    for pid in step_daemons(stage, f"{job_id}.0"):
        send_signal(pid, signal.SIGKILL)
    if not has_next:
        stage.lab.command("scancel", "--state=PENDING", "--user=root")
    stage.lab.command("scancel", job_id)
    assert stage.end(run) is State.STOPPED, stage.story(run)
    assert stage.causes(run) == ["cancelled"]
    expect_nothing_left(stage, run)
