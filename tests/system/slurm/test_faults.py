"""What breaks on a cluster: nodes without power or network, the controller, the site's own hands."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.guests import inhabitants
from tests.system import launcher
from tests.system.slurm.slurm_stage import SITE, SlurmStage
from tests.system.stage import PYTHON, living, until
from windlass import Run
from windlass.core.process import send_signal
from windlass.record.state import State

pytestmark = pytest.mark.system

_NUM_STEPS = 120
_HOLD_AT = 8


def trainer(num_steps: int = _NUM_STEPS, pause_s: float = 0.25, hold_at: int = _HOLD_AT) -> list[str]:
    """A training whose first attempt holds after a step, until it is killed."""
    return [PYTHON, "trainer.py", str(num_steps), str(pause_s), "0.02", str(hold_at)]


def host_of(run: Run, rank: int) -> str:
    newest = run.facts.task("main").newest_attempt
    assert newest is not None
    return newest.replicas[rank].host


@pytest.mark.parametrize("rank", [0, 1])
def test_a_power_cut_of_a_node_costs_one_link(slurm_stage: SlurmStage, rank: int) -> None:
    """Rank 0 leads, and its node runs the batch script."""
    stage = slurm_stage
    run = stage.start(stage.task(trainer(), nodes=2))
    stage.wait_for_line(run, f"step {_HOLD_AT} ")
    dead = host_of(run, rank)
    stage.lab.kill(dead)
    assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
    assert stage.causes(run) == ["node-lost", "ok"]
    assert (stage.ends(run)[0].rank, stage.ends(run)[0].host) == (rank, dead), stage.ends(run)[0]
    assert dead not in {replica.host for replica in stage.attempts(run)[1].replicas.values()}
    assert stage.doubled() == []
    stage.wait_until_queue_is_empty()


def test_a_node_without_network_writes_nothing_into_its_successors_life(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    script = """
import os, pathlib, sys, time
me = os.environ["WINDLASS_ATTEMPT"]
with open(os.environ["WINDLASS_OUT"] + "/lives", "a", buffering=1) as file:
    for _ in range(4000 if me == "1" else 40):
        file.write(f"{me} {time.time():.3f}\\n")
        time.sleep(0.25)
"""
    stage.write("lives.py", script)
    run = stage.start(stage.task([PYTHON, "lives.py"], nodes=1))
    until((run.output("main") / "lives").exists, "it lives")
    lost = host_of(run, 0)
    stage.lab.cut(lost)
    assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
    order = [line.split()[0] for line in (run.output("main") / "lives").read_text().splitlines()]
    assert order == sorted(order), "the old life wrote into the new one"
    assert stage.causes(run) == ["node-lost", "ok"]
    assert stage.doubled() == []
    stage.lab.join(lost)
    until(lambda: not inhabitants(stage.lab.slot).guests, "nothing of it is left on the node", timeout_s=300)


def test_scancel_stops_a_run_and_its_chain(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    spec = stage.task(trainer(100_000), nodes=2)
    spec["limit"] = {"time": "30m", "per_job": "10m"}
    run = stage.start(spec)
    stage.wait_for_line(run, "step 2")
    stage.lab.command("scancel", stage.job_ids(run)[0])
    assert stage.end(run) is State.STOPPED, stage.story(run)
    assert stage.causes(run) == ["cancelled"]
    stage.wait_until_queue_is_empty()
    assert stage.survivors(run) == {}


def test_scancel_of_a_job_that_waits_ends_the_run(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    blocker = stage.lab.command(
        *("sbatch", "--parsable", "--nodes=4", "--exclusive", "--time=20", "--output=/dev/null", "--wrap=sleep 900")
    )
    run = stage.start(stage.task("true", nodes=1))
    (waiting,) = [job for job, state in stage.queue().items() if state == "PENDING" and job != blocker]
    stage.lab.command("scancel", waiting)
    assert stage.end(run) is State.STOPPED, stage.story(run)
    assert run.facts.cause == "cancelled"
    stage.lab.command("scancel", blocker)


def test_a_controller_that_dies_while_a_job_ends_changes_nothing(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    stage.lab.wait_until_remembered()
    run = stage.start(stage.task("echo begun; sleep 2; echo once >> $WINDLASS_OUT/marks", nodes=2))
    stage.wait_for_line(run, "begun")
    time.sleep(1.5)
    stage.lab.kill_controller()
    until(lambda: run.state.is_terminal, "the run ends by its supervisors' word alone", timeout_s=300)
    assert run.state is State.SUCCEEDED
    stage.lab.start_controller()
    stage.lab.wait_until_idle(resume=True)
    run.reconcile()
    assert run.state is State.SUCCEEDED
    assert (run.output("main") / "marks").read_text() == "once\nonce\n"
    stage.wait_until_queue_is_empty()
    assert (run.output("main") / "marks").read_text() == "once\nonce\n"


def test_a_controller_that_dies_in_the_submit_window_loses_and_doubles_nothing(slurm_stage: SlurmStage) -> None:
    """It forgets what it took in its last seconds, and gives the same ids again."""
    stage = slurm_stage
    stage.lab.wait_until_remembered()
    runs = [stage.start(stage.task("sleep 1; echo once >> $WINDLASS_OUT/marks"), name=f"w{n}") for n in range(3)]
    stage.lab.kill_controller()
    time.sleep(1.0)
    stage.lab.start_controller()
    stage.lab.wait_until_idle(resume=True)
    for run in runs:
        assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
        assert (run.output("main") / "marks").read_text() == "once\n"
    stage.wait_until_queue_is_empty()
    assert stage.doubled() == []


def test_a_job_with_the_id_of_a_forgotten_one_goes_on_at_another_node(slurm_stage: SlurmStage, tmp_path: Path) -> None:
    """The node takes it for the one that it ran, cancels it and is drained; nobody has asked for a stop.

    A node forgets an id when it is told to end the job: not where the job ends before the node tells of it.
    """
    stage, end = slurm_stage, tmp_path / "end"
    stage.lab.wait_until_remembered()
    saved = stage.lab.folder / "state" / "job_state"
    before = saved.read_bytes()
    waits = f"--wrap=until [ -e {end} ]; do sleep 0.05; done"
    forgotten = stage.lab.command("sbatch", "--parsable", "--no-requeue", "-wn1", "--output=/dev/null", waits)
    stage.lab.wait_for_state(forgotten, "RUNNING")
    stage.lab.wait_until_log_says("n1", f"Launching batch job {forgotten} ")
    stage.lab.kill_controller()
    saved.write_bytes(before)
    stage.lab.signal_daemon("n1", signal.SIGSTOP)
    stage.lab.start_controller()
    end.touch()
    stage.lab.wait_until_log_says("n1", f"[{forgotten}.batch] done with job")
    stage.lab.signal_daemon("n1", signal.SIGCONT)
    stage.lab.wait_until_idle(resume=True)
    run = stage.start(stage.task("echo once >> $WINDLASS_OUT/marks"))
    assert stage.end(run, 300) is State.SUCCEEDED, stage.story(run)
    first, second = (run.facts.task("main").jobs[number].backend_id for number in (1, 2))
    assert first == forgotten != second
    assert stage.causes(run) == ["node-unhealthy", "ok"]
    assert "(Slurm: Duplicate jobid)" in stage.ends(run)[0].message
    assert host_of(run, 0) != "n1"
    assert (run.output("main") / "marks").read_text() == "once\n"
    stage.wait_until_queue_is_empty()


def test_without_a_controller_a_launch_is_not_lost(slurm_stage: SlurmStage) -> None:
    stage = slurm_stage
    stage.lab.wait_until_remembered()
    stage.lab.kill_controller()
    argv = [sys.executable, str(Path(launcher.__file__)), str(stage.experiment(stage.task("echo x"), "later"))]
    done = subprocess.run([*argv, f"--on={SITE}"], capture_output=True, text=True)
    assert "site-unreachable" in done.stderr or "Unreachable" in done.stderr, done.stderr
    stage.lab.start_controller()
    (run,) = stage.runs("later")
    assert stage.end(run) is State.SUCCEEDED, stage.story(run)


def test_submits_with_a_client_killed_at_any_moment(slurm_stage: SlurmStage) -> None:
    submit_with_killed_clients(slurm_stage, num=20, seed=5)


def submit_with_killed_clients(stage: SlurmStage, *, num: int, seed: int) -> None:
    """Launch again and again with a client that is killed; every run that exists ends, having run once."""
    die = random.Random(seed)
    path = stage.experiment(stage.task("echo once >> $WINDLASS_OUT/marks"), "shot")
    argv = [sys.executable, str(Path(launcher.__file__)), str(path), f"--on={SITE}"]
    began = time.monotonic()
    subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    whole_s = time.monotonic() - began  # what a client takes that nobody kills, on this machine now
    for _ in range(num):
        client = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(die.uniform(0.2, 1.2) * whole_s)
        send_signal(client.pid, signal.SIGKILL)
        client.wait()
    runs = stage.runs("shot")
    assert len(runs) > 1
    for run in runs:
        state = stage.end(run, 300)
        marks = run.output("main") / "marks"
        if state is State.SUCCEEDED:
            assert marks.read_text() == "once\n", stage.story(run)
        else:
            assert run.facts.cause == "start-failed", stage.story(run)
            assert not marks.exists()
    assert any(run.state is State.SUCCEEDED for run in runs)
    stage.wait_until_queue_is_empty()
    assert living(str(stage.home.runs)) == {}
