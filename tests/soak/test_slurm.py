"""The long version of tests/system/slurm/test_faults.py and test_chain.py; SOAK_SHARE=0.1 plays a tenth of it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system import launcher
from tests.system.slurm.conftest import slurm_stage  # noqa: F401 - a fixture, found by its name
from tests.system.slurm.slurm_stage import SITE, SlurmStage
from tests.system.stage import PYTHON, living
from windlass import Run
from windlass.core.process import send_signal
from windlass.record.state import State

pytestmark = pytest.mark.soak

_SHARE = float(os.environ.get("SOAK_SHARE", "1"))
NUM_SUBMITS, NUM_CHAINS, NUM_CONTROLLER_KILLS = (max(1, round(_SHARE * number)) for number in (300, 30, 20))
NUM_AT_ONCE = 4
NUM_STEPS, PAUSE_S = 160, 0.25
ONCE = "echo once >> $WINDLASS_OUT/marks"

Evidence = Callable[[str, str], None]


def keep(evidence: Evidence, name: str, lines: list[str]) -> None:
    text = "\n".join(lines)
    print("\n" + text)  # noqa: T201 - the figures are what `make soak` is for
    evidence(name, text)


# --- submits --------------------------------------------------------------------------------------------------------


def marks(run: Run) -> int:
    """How often the user's code of a run went through."""
    path = run.output("main") / "marks"
    return path.read_text().count("once") if path.exists() else 0


def ended(stage: SlurmStage, name: str) -> tuple[Counter[str], list[str]]:
    """How the runs of an experiment ended, and what of it breaks a promise."""
    found: Counter[str] = Counter()
    problems = []
    for run in stage.runs(name):
        state = stage.end(run, 180)
        count, expected = marks(run), 1 if state is State.SUCCEEDED else 0
        found[str(state) if state is State.SUCCEEDED else f"{state} ({run.facts.cause})"] += 1
        if count != expected or (state is not State.SUCCEEDED and run.facts.cause != "start-failed"):
            problems.append(f"{run.id}: {state}, {run.facts.cause}, ran {count} times")
    stage.wait_until_queue_is_empty()
    problems += [f"process {pid} survived: {line}" for pid, line in living(str(stage.home.runs)).items()]
    return found, problems


def described(found: Counter[str]) -> str:
    return ", ".join(f"{count} {how}" for how, count in found.most_common())


def test_submits_with_a_client_killed_at_any_moment(slurm_stage: SlurmStage, evidence: Evidence) -> None:  # noqa: F811
    stage, die = slurm_stage, random.Random(1005)
    argv = [
        sys.executable,
        str(Path(launcher.__file__)),
        str(stage.experiment(stage.task(ONCE), "shot")),
        f"--on={SITE}",
    ]
    num_killed = 0
    for _ in range(NUM_SUBMITS):
        client = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(die.uniform(0.1, 0.7))
        num_killed += client.poll() is None
        send_signal(client.pid, signal.SIGKILL)
        client.wait()
    found, problems = ended(stage, "shot")
    lines = [f"clients started {NUM_SUBMITS}, killed before they were done {num_killed}"]
    lines += [f"runs            {found.total()}: {described(found)}", f"doubled, lost, or left over: {len(problems)}"]
    keep(evidence, "slurm-submits", lines)
    assert problems == []


def test_a_controller_killed_in_the_submit_window(slurm_stage: SlurmStage, evidence: Evidence) -> None:  # noqa: F811
    stage, die = slurm_stage, random.Random(7)
    argv = [
        sys.executable,
        str(Path(launcher.__file__)),
        str(stage.experiment(stage.task(ONCE), "win")),
        f"--on={SITE}",
    ]
    answers: Counter[int] = Counter()
    for _ in range(NUM_CONTROLLER_KILLS):
        client = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(die.uniform(0.25, 0.8))
        stage.lab.kill_controller()
        time.sleep(die.uniform(0.0, 2.0))
        stage.lab.start_controller()
        answers[client.wait(timeout=120)] += 1
        stage.lab.wait_until_idle(resume=True) if not stage.queue() else time.sleep(1.0)
    found, problems = ended(stage, "win")
    problems += [f"{found.total()} runs of {NUM_CONTROLLER_KILLS} launches"] * (found.total() != NUM_CONTROLLER_KILLS)
    lines = [f"slurmctld killed {NUM_CONTROLLER_KILLS} times, each within a second of a client's start"]
    lines += [f"clients          {', '.join(f'{count} ended with {code}' for code, count in answers.most_common())}"]
    lines += [f"runs             {found.total()}: {described(found)}", f"doubled, lost, or left over: {len(problems)}"]
    keep(evidence, "slurm-controller", lines)
    assert problems == []


# --- chains ---------------------------------------------------------------------------------------------------------


class Chain:
    """A training over several links, and the trace of what it started."""

    def __init__(self, stage: SlurmStage, number: int) -> None:
        self.starts = stage.code.parent / f"starts-{number}"
        command = [PYTHON, "trainer.py", str(NUM_STEPS), str(PAUSE_S)]
        spec = stage.task(command, nodes=2, cpus=2, vars={"STARTS": str(self.starts)})
        spec["limit"] = {"time": "20m", "per_job": "15s"}
        self.run = stage.start(spec, name=f"chain{number}", on=f"{SITE}/low")

    def problems(self, stage: SlurmStage, expected: set[str]) -> list[str]:
        """What breaks a promise, once it is over."""
        found = {path.read_text() for path in self.run.output("main").glob("digest-*")}
        checks = {
            f"is {self.run.state}, {self.run.facts.cause}": self.run.state is not State.SUCCEEDED,
            "has another result than the uninterrupted run": found != expected,
            f"started {stage.doubled(self.starts)} twice": bool(stage.doubled(self.starts)),
            f"left {stage.survivors(self.run)}": bool(stage.survivors(self.run)),
        }
        return [f"{self.run.id} {what}" for what, is_so in checks.items() if is_so]


def strike(stage: SlurmStage, chains: list[Chain], die: random.Random) -> str:
    """One blow at what runs now; its kind."""
    kind = die.choices(("kill", "preempt", "power cut"), (8, 1, 1))[0]
    if kind == "preempt":
        argv = ("--partition=main", "--nodes=4", "--exclusive", "--time=1", "--output=/dev/null", "--wrap=sleep 1")
        stage.lab.command("sbatch", *argv)
    elif kind == "power cut":
        node = die.choice(stage.lab.nodes)
        stage.lab.kill(node)
        stage.lab.wait_for_node(node, "down", timeout_s=90)
        stage.lab.start(node)
    else:
        living_ones = {pid for chain in chains for pid in stage.inhabitants(chain.run)}
        if not living_ones:
            return "miss"
        send_signal(die.choice(sorted(living_ones)), signal.SIGKILL)
    return kind


def play(stage: SlurmStage, numbers: range, die: random.Random) -> tuple[list[Chain], Counter[str]]:
    """Some chains at once, with a blow at one of them every few seconds."""
    chains = [Chain(stage, number) for number in numbers]
    blows: Counter[str] = Counter()
    deadline = time.monotonic() + 900
    while any(not chain.run.state.is_terminal for chain in chains) and time.monotonic() < deadline:
        time.sleep(die.uniform(1.0, 5.0))
        blows[strike(stage, chains, die)] += 1
        for chain in chains:
            chain.run.reconcile()
    return chains, blows


def test_chains_with_kills_preemptions_and_power_cuts(slurm_stage: SlurmStage, evidence: Evidence) -> None:  # noqa: F811
    stage, die = slurm_stage, random.Random(11)
    whole = stage.start(stage.task([PYTHON, "trainer.py", str(NUM_STEPS), "0"], nodes=2), name="whole")
    assert stage.end(whole) is State.SUCCEEDED
    expected = {path.read_text() for path in whole.output("main").glob("digest-*")}
    blows: Counter[str] = Counter()
    problems: list[str] = []
    causes: Counter[str] = Counter()
    num_links = num_attempts = 0
    for first in range(0, NUM_CHAINS, NUM_AT_ONCE):
        chains, dealt = play(stage, range(first, min(NUM_CHAINS, first + NUM_AT_ONCE)), die)
        blows += dealt
        stage.wait_until_queue_is_empty()
        for chain in chains:
            problems += [f"{what}\n{stage.story(chain.run)}" for what in chain.problems(stage, expected)]
            causes += Counter(stage.causes(chain.run))
            num_links += len(stage.job_ids(chain.run))
            num_attempts += len(stage.attempts(chain.run))
    lines = [
        f"chains          {NUM_CHAINS} of 2 nodes, {NUM_AT_ONCE} at once, {num_links} links, {num_attempts} attempts"
    ]
    lines += [f"blows           {described(blows)}", f"attempts' ends  {described(causes)}"]
    lines += [f"with another result, doubled, lost, or left over: {len(problems)}"]
    keep(evidence, "slurm-chains", lines)
    assert problems == [], "\n".join(problems)
