"""Kill one process of ours or of the user's at a random moment of a short run, and look what became of the run."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.stage import PYTHON, Stage, living, until
from tests.system.trainer import Training
from windlass import Run
from windlass.core.process import send_signal
from windlass.record.causes import Cause
from windlass.record.state import State

__all__ = ["TARGETS", "Outcome", "strike", "strike_all", "table"]

TARGETS = ("guard", "supervisor", "guard+supervisor", "rank", "launcher")
NUM_STEPS = 24
PAUSE_S = 0.04
_LAUNCHER = Path(__file__).with_name("launcher.py")
_START_UP_S = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one kill led to; `problems` is empty when every promise held."""

    seed: int
    target: str
    moment: str
    num_killed: int
    state: str
    causes: tuple[str, ...]
    seconds: float
    problems: tuple[str, ...]


def strike_all(stage: Stage, seeds: Iterable[int], num_parallel: int = 4) -> list[Outcome]:
    """Strike once per seed, several runs at a time."""
    launch_s = _launch_seconds(stage)
    slow_first = sorted(seeds, key=lambda seed: "+" not in TARGETS[seed % len(TARGETS)])
    with ThreadPoolExecutor(num_parallel) as pool:
        return list(pool.map(lambda seed: strike(stage, seed, launch_s), slow_first))


def _launch_seconds(stage: Stage) -> float:
    """How long a launching command takes here and now."""
    began = time.monotonic()
    subprocess.run([PYTHON, str(_LAUNCHER), str(stage.experiment(stage.task("true"), "calm"))], check=True)
    return time.monotonic() - began


def strike(stage: Stage, seed: int, launch_s: float) -> Outcome:
    """One run with one kill; the seed says what is killed and when.

    The launching command is killed while it plans, or from when its run's folder appears; the others, one in four while
    everything starts, and else shortly after a step.
    """
    random_ = random.Random(seed)
    target, began = TARGETS[seed % len(TARGETS)], time.monotonic()
    starts, name = stage.code.parent / f"starts-{seed}", f"strike-{seed}"
    spec = stage.task(f"{PYTHON} trainer.py {NUM_STEPS} {PAUSE_S}", nodes=2)
    spec["env"] = {"vars": {"STARTS": str(starts)}}
    if target == "launcher":
        has_folder = random_.random() < 0.7
        delay_s = random_.uniform(0.0, 0.12) if has_folder else random_.uniform(0.25, 1.6) * launch_s
        moment = f"{delay_s:.2f} s after {'its folder' if has_folder else 'its start'}"
        num_killed = _kill_launcher(stage, spec, name, delay_s, has_folder)
    else:
        run = stage.launch(spec, name=name)
        moment = _wait_for_moment(run, random_)
        num_killed = _kill(stage, run, target, random_.randrange(2))
    runs = stage.runs(name)
    problems = [problem for run in runs for problem in _problems(stage, run, starts)]
    if len(runs) > 1:
        problems.append(f"{len(runs)} runs")
    problems += [f"process {pid} survived: {line}" for pid, line in living(str(starts)).items()]
    return Outcome(
        seed=seed,
        target=target,
        moment=moment,
        num_killed=num_killed,
        state=str(runs[0].state) if runs else "not launched",
        causes=tuple(stage.causes(runs[0])) if runs else (),
        seconds=time.monotonic() - began,
        problems=tuple(problems),
    )


def _wait_for_moment(run: Run, random_: random.Random) -> str:
    delay_s = random_.uniform(0.0, _START_UP_S)
    step = random_.randrange(-NUM_STEPS // 4, NUM_STEPS * 4 // 5) + 1
    if step > 0:
        delay_s *= PAUSE_S / _START_UP_S
        log = run.folder.logs / "1" / "main" / "0.log"
        until(lambda: run.state.is_terminal or (log.exists() and f"step {step} " in log.read_text()), f"step {step}")
    time.sleep(delay_s)
    return f"{delay_s:.2f} s after {f'step {step}' if step > 0 else 'the launch'}"


def _kill_launcher(stage: Stage, spec: dict[str, Any], name: str, delay_s: float, has_folder: bool) -> int:
    path = stage.experiment(spec, name)
    process = subprocess.Popen([PYTHON, str(_LAUNCHER), str(path)], start_new_session=True)
    if has_folder:
        until(lambda: bool(stage.runs(name)) or process.poll() is not None, "the launching command makes a folder")
    with contextlib.suppress(subprocess.TimeoutExpired):
        return int(process.wait(delay_s) != 0)
    process.kill()
    process.wait()
    return 1


def _kill(stage: Stage, run: Run, target: str, rank: int) -> int:
    """Kill as soon as everything that is to be killed is there; returns how many were hit."""

    def targets() -> list[int]:
        return [stage.user(run, rank) if what == "rank" else stage.ours(run, what, rank) for what in target.split("+")]

    until(lambda: all(targets()) or run.state.is_terminal, f"{target} {rank} of {run.id} lives")
    return sum(send_signal(pid, signal.SIGKILL) for pid in targets() if pid)


def _problems(stage: Stage, run: Run, starts: Path) -> list[str]:
    """What of the promises does not hold."""
    try:
        state = stage.end(run, timeout_s=300.0)
    except AssertionError as error:
        return [f"lost: {error}"]
    found = [f"attempt {attempt} of rank {rank} started twice" for attempt, rank in stage.doubled(starts)]
    left = stage.survivors(run)
    found += [f"process {pid} survived: {line}" for pid, line in left.items()]
    was_never_started = run.facts.cause == Cause.START_FAILED and not stage.starts_of(starts)
    if state is not State.SUCCEEDED:
        return found if was_never_started else [*found, f"{state}:\n{stage.story(run)}"]
    for rank in range(2):
        path = run.output("main") / f"digest-{rank}"
        if not path.exists() or path.read_text() != expected():
            found.append(f"the result of rank {rank} differs from that of an uninterrupted run")
    return found


def expected() -> str:
    """The digest of an uninterrupted training."""
    training = Training()
    while training.step < NUM_STEPS:
        training.advance()
    return training.digest()


def table(outcomes: list[Outcome]) -> str:
    """The outcomes by target, as text."""
    lines = ["target             kills  hit  succeeded  never begun  attempts  problems  slowest"]
    for target in TARGETS:
        mine = [outcome for outcome in outcomes if outcome.target == target]
        states = Counter(outcome.state for outcome in mine)
        lines.append(
            f"{target:17}  {len(mine):5}  {sum(bool(o.num_killed) for o in mine):3}  {states['succeeded']:9}"
            f"  {states['failed'] + states['not launched']:11}  {sum(len(o.causes) for o in mine):8}"
            f"  {sum(bool(o.problems) for o in mine):8}  {max((o.seconds for o in mine), default=0.0):5.1f} s"
        )
    return "\n".join(lines)
