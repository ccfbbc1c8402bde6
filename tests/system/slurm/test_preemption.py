"""What a site does to a job that runs: it takes its nodes, puts it back, shortens its time, drains or boots a node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.system.slurm.command import windlass
from tests.system.slurm.slurm_stage import SlurmStage
from tests.system.stage import PYTHON, until
from windlass import Run
from windlass.record.state import Attempt, State

pytestmark = pytest.mark.system

_LISTENER = """
import os, sys, time
from windlass import report
latest = report.latest_checkpoint()
step = int((latest / "step").read_text()) if latest else 0
report.should_stop()  # from here on a signal makes it save
print(f"from {step}", flush=True)
while not os.path.exists(os.environ["ENOUGH"]):
    step += 1
    report.metrics({"x": 1.0}, step=step)
    time.sleep(0.1)
    if report.should_stop():
        if report.place().rank == 0:
            with report.checkpoint_dir(step=step) as folder:
                (folder / "step").write_text(str(step))
            print(f"saved {step}", flush=True)
        sys.exit(75)
"""
_REQUEUES = {"  kill_wait": "  chain: requeue\n  kill_wait"}


def listen(stage: SlurmStage, *, on: str = "lab/low", nodes: int = 1, priority: str = "") -> Run:
    """A run that listens, and steps until `enough` is called."""
    stage.write("listener.py", _LISTENER)
    spec = stage.task([PYTHON, "-u", "listener.py"], nodes=nodes, cpus=2)
    spec["tasks"]["main"]["grace"] = "10s"
    spec["env"] = {"vars": {"ENOUGH": str(_enough(stage))}}
    spec["limit"] = {"time": "30m", "per_job": "10m"}
    if priority:
        spec["context"] = {"priority": priority}
    run = stage.start(spec, on=on)
    wait_for_life(stage, run, 1)
    return run


def _enough(stage: SlurmStage) -> Path:
    return stage.code.parent / "enough"


def wait_for_life(stage: SlurmStage, run: Run, attempt: int, timeout_s: float = 300) -> Attempt:
    """Wait until the user's code runs in an attempt."""
    log = run.folder.logs / str(attempt) / "main" / "0.log"
    until(
        lambda: log.exists() and "from" in log.read_text(),
        f"attempt {attempt} runs",
        timeout_s,
        story=lambda: stage.story(run),
    )
    return run.facts.task("main").attempts[attempt]


def finish(stage: SlurmStage, run: Run) -> None:
    """Let the code end, and look that nothing is left."""
    _enough(stage).touch()
    assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
    stage.wait_until_queue_is_empty()
    assert stage.survivors(run) == {}


def take_nodes(stage: SlurmStage, *how: str) -> None:
    """A job of somebody more important: all nodes, for a second."""
    stage.lab.command("sbatch", *how, "--nodes=4", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 1")


def expect_went_on(stage: SlurmStage, run: Run, cause: str) -> None:
    """The first attempt saved because it was told to, and the second went on from there."""
    assert stage.causes(run) == [cause, "ok"], stage.story(run)
    saved = re.search(r"saved (\d+)", stage.log(run, 1))
    assert saved is not None, "it did not save"
    assert stage.log(run, 2).splitlines()[0] == f"from {saved[1]}"


@pytest.mark.parametrize("partition", ["low", "lowcancel"])
def test_a_preemption_by_partition(slurm_stage: SlurmStage, partition: str) -> None:
    run = listen(slurm_stage, on=f"lab/{partition}", nodes=2)
    take_nodes(slurm_stage, "--partition=main")
    wait_for_life(slurm_stage, run, 2)
    finish(slurm_stage, run)
    expect_went_on(slurm_stage, run, "preempted")
    assert len(set(slurm_stage.job_ids(run))) == 2


def test_a_preemption_by_qos(accounting_stage: SlurmStage) -> None:
    run = listen(accounting_stage, on="lab", nodes=2, priority="low")
    take_nodes(accounting_stage, "--qos=high")
    wait_for_life(accounting_stage, run, 2)
    finish(accounting_stage, run)
    expect_went_on(accounting_stage, run, "preempted")


# --- sites whose long jobs are requeued -----------------------------------------------------------------------------


def expect_same_job(stage: SlurmStage, run: Run) -> None:
    """Both attempts are starts of one job in Slurm."""
    (number,) = set(stage.job_ids(run))
    assert [attempt.incarnation for attempt in stage.attempts(run)] == [f"{number}.0", f"{number}.1"]


def test_a_requeued_preemption_goes_on_in_the_same_job(slurm_stage: SlurmStage) -> None:
    slurm_stage.write_site(**_REQUEUES)
    run = listen(slurm_stage)
    take_nodes(slurm_stage, "--partition=main")
    wait_for_life(slurm_stage, run, 2)
    finish(slurm_stage, run)
    expect_went_on(slurm_stage, run, "preempted")
    expect_same_job(slurm_stage, run)


def test_a_requeue_by_the_admin_goes_on_in_the_same_job(slurm_stage: SlurmStage) -> None:
    slurm_stage.write_site(**_REQUEUES)
    run = listen(slurm_stage, on="lab")
    slurm_stage.lab.command("scontrol", "requeue", slurm_stage.job_ids(run)[0])
    wait_for_life(slurm_stage, run, 2)
    finish(slurm_stage, run)
    assert slurm_stage.causes(run) == ["preempted", "ok"], slurm_stage.story(run)
    expect_same_job(slurm_stage, run)


def test_a_job_that_is_requeued_and_held_says_so_and_goes_on_when_it_is_let_go(slurm_stage: SlurmStage) -> None:
    slurm_stage.write_site(**_REQUEUES)
    run = listen(slurm_stage, on="lab")
    number = slurm_stage.job_ids(run)[0]
    slurm_stage.lab.command("scontrol", "requeuehold", number)
    until(lambda: "hold" in windlass("show", run.id).out, "it says that it is held", timeout_s=300)
    shown = windlass("show", run.id).out
    assert f"scontrol release {number}" in shown, shown
    slurm_stage.lab.wait_until_idle()  # Slurm forgets a release while the job's first start is still being cleaned up
    slurm_stage.lab.command("scontrol", "release", number)
    wait_for_life(slurm_stage, run, 2)
    finish(slurm_stage, run)
    assert slurm_stage.causes(run) == ["preempted", "ok"], slurm_stage.story(run)
    expect_same_job(slurm_stage, run)


# --- the admin's other tools ------------------------------------------------------------------------------------------


def test_a_walltime_that_is_shortened_is_noticed_by_slurms_signal(slurm_stage: SlurmStage) -> None:
    """Our own clock knows the old one: only the signal can tell."""
    run = listen(slurm_stage, on="lab")
    slurm_stage.lab.command("scontrol", "update", f"JobId={slurm_stage.job_ids(run)[0]}", "TimeLimit=1")
    wait_for_life(slurm_stage, run, 2)
    finish(slurm_stage, run)
    expect_went_on(slurm_stage, run, "walltime")


def test_a_drained_node_ends_nothing(slurm_stage: SlurmStage) -> None:
    run = listen(slurm_stage, on="lab")
    attempt = run.facts.task("main").newest_attempt
    assert attempt is not None
    host = attempt.replicas[0].host
    slurm_stage.lab.command("scontrol", "update", f"NodeName={host}", "State=DRAIN", "Reason=test")
    try:
        slurm_stage.lab.wait_for_node(host, "draining", "drng")
        finish(slurm_stage, run)
    finally:
        slurm_stage.lab.command("scontrol", "update", f"NodeName={host}", "State=RESUME")
    assert slurm_stage.causes(run) == ["ok"]


def test_a_node_that_boots_in_between_is_a_lost_node(slurm_stage: SlurmStage) -> None:
    run = listen(slurm_stage, on="lab", nodes=2)
    attempt = run.facts.task("main").newest_attempt
    assert attempt is not None
    host = attempt.replicas[1].host
    slurm_stage.lab.kill(host)
    slurm_stage.lab.start(host)
    wait_for_life(slurm_stage, run, 2)
    finish(slurm_stage, run)
    assert slurm_stage.causes(run) == ["node-lost", "ok"], slurm_stage.story(run)
