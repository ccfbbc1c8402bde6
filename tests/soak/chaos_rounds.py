"""Rounds of the chaos: a run, one blow at a random moment, and an oracle that looks what became of both."""

from __future__ import annotations

import contextlib
import itertools
import random
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.chaos_faults import FAULTS, Fault, Scene
from tests.system.slurm.slurm_stage import SITE, SlurmStage
from tests.system.stage import PYTHON, until
from tests.system.trainer import Training
from windlass import Options, Run
from windlass.core.errors import WindlassError
from windlass.record.state import State

__all__ = ["Outcome", "fault_of", "play", "table"]

NUM_STEPS, LATER_PAUSE_S = 48, 0.02
_LAST_STEP_OF_A_BLOW = 36
_EARLY = 0.2
"""The share of blows while everything starts; the others come after a step."""
_PRICE_OF_A_LOOK_S = 0.5

_PROGRAM = """
import os, sys, time
import trainer
from windlass import report
descriptor = os.open(os.environ["TOLD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
def tell(line, **_):
    print(line, flush=True)
    place = report.place()
    os.write(descriptor, f"{time.time():.3f} {place.attempt} {place.rank} {line}\\n".encode())
trainer.print = tell
trainer.main(*map(float, sys.argv[1:]))
"""
"""The trainer, which notes each line elsewhere once it has printed it."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What one blow led to."""

    seed: int
    fault: str
    moment: str = ""
    causes: list[str] = field(default_factory=list)
    wrong_causes: list[str] = field(default_factory=list)
    false_verdicts: list[str] = field(default_factory=list)
    leftovers: list[str] = field(default_factory=list)
    num_lost_lines: int = 0
    lost_lines: list[str] = field(default_factory=list)
    recovery_s: float | None = None
    story: str = ""

    @property
    def problems(self) -> list[str]:
        return [*self.wrong_causes, *self.false_verdicts, *self.leftovers, *self.lost_lines]


@dataclass(frozen=True, slots=True)
class Line:
    """A line that user code has printed."""

    at: float
    attempt: int
    rank: int
    text: str


def fault_of(seed: int) -> str:
    return list(FAULTS)[seed % len(FAULTS)]


def play(stage: SlurmStage, seed: int) -> Outcome:
    """One round; the seed says which fault it is and when it comes."""
    outcome = Outcome(seed=seed, fault=fault_of(seed))
    fault, die, folder = FAULTS[outcome.fault], random.Random(seed), stage.code.parent
    told, starts = folder / f"told-{seed}", folder / f"starts-{seed}"
    saved = _remembered(stage) if fault.is_alone else b""
    scene = Scene(stage=stage, run=_launch(stage, fault, seed, told, starts), die=die, saved_jobs=saved)
    try:
        struck_at = _strike(scene, fault, outcome)
        _wait_for_end(scene, fault)
        if fault.is_after:
            struck_at = time.time()
            fault.strike(scene)
        outcome.recovery_s = time.time() - struck_at if fault.is_after else _silence(told, struck_at)
    except AssertionError as error:
        outcome.false_verdicts.append(f"did not come to its end: {str(error)[:300]}")
    outcome.false_verdicts += scene.problems
    _judge(scene, fault, outcome, starts)
    _compare_lines(scene, fault, outcome, told)
    if outcome.problems:
        outcome.story = stage.story(scene.run)
    _clean_up(scene, fault)
    return outcome


def _remembered(stage: SlurmStage) -> bytes:
    stage.lab.wait_until_remembered()
    with contextlib.suppress(FileNotFoundError):  # it is renamed while it is written
        return (stage.lab.folder / "state" / "job_state").read_bytes()
    return b""


def _launch(stage: SlurmStage, fault: Fault, seed: int, told: Path, starts: Path) -> Run:
    stage.write("chaotic.py", _PROGRAM)
    command = [PYTHON, "chaotic.py", str(NUM_STEPS), str(fault.pause_s), str(LATER_PAUSE_S)]
    spec = stage.task(command, nodes=2)
    spec["env"] = {"vars": {"STARTS": str(starts), "TOLD": str(told)}}
    if not fault.is_local:
        spec["limit"] = {"time": "30m", "per_job": "10m"}
    return stage.launch(
        spec, name=f"chaos-{seed}", options=Options(allow_dirty=True, on="" if fault.is_local else SITE)
    )


def _strike(scene: Scene, fault: Fault, outcome: Outcome) -> float:
    """Wait for the moment and strike; returns when."""
    if fault.is_after:
        outcome.moment = "after its end"
        return 0.0
    delay_s = scene.die.uniform(0.0, 1.0)
    step = 0 if scene.die.random() < _EARLY else scene.die.randrange(_LAST_STEP_OF_A_BLOW) + 1
    if step:
        delay_s *= fault.pause_s
        log = scene.run.folder.logs / "1" / "main" / "0.log"
        until(
            lambda: scene.run.state.is_terminal or (log.exists() and f"step {step} " in log.read_text()),
            f"step {step}",
            story=lambda: scene.stage.story(scene.run),
        )
    time.sleep(delay_s)
    outcome.moment = f"{delay_s:.2f} s after {f'step {step}' if step else 'the launch'}"
    struck_at = time.time()
    fault.strike(scene)
    return struck_at


def _wait_for_end(scene: Scene, fault: Fault) -> None:
    """Look as a client does; an operator of the cluster returns nodes to service meanwhile."""

    def is_over() -> bool:
        if not scene.run.state.is_terminal:
            scene.run.reconcile()
            if fault.is_alone:
                _return_nodes(scene.stage)
        return scene.run.state.is_terminal

    story = lambda: scene.stage.story(scene.run)  # noqa: E731
    until(is_over, f"{scene.run.id} ends", 240.0, story=story, poll_s=_PRICE_OF_A_LOOK_S)


def _return_nodes(stage: SlurmStage) -> None:
    rows = stage.lab.command("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T", check=False)
    for row in rows.splitlines():
        node, _, state = row.partition(" ")
        if state.startswith(("down", "drained")) and "*" not in state:
            stage.lab.command("scontrol", "update", f"nodename={node}", "state=resume", check=False)


# --- the oracle ------------------------------------------------------------------------------------------------------


def _judge(scene: Scene, fault: Fault, outcome: Outcome, starts: Path) -> None:
    stage, run = scene.stage, scene.run
    ends = stage.ends(run)
    outcome.causes = [end.cause for end in ends]
    for end in ends[:-1]:
        if end.cause not in fault.causes:
            outcome.wrong_causes.append(f"an attempt ended by {end.cause}: {end.message}")
        if scene.cut_node and scene.cut_node not in f"{end.host} {end.message}":
            outcome.wrong_causes.append(f"{scene.cut_node} lost its power, and it says {end.message!r}")
    has_ended = outcome.causes[-1:] == ["ok"] or fault.is_after  # its attempts are in the journal that was damaged
    if not has_ended or run.facts.cause != "ok":
        said = f"{ends[-1].cause}: {ends[-1].message}" if ends else "nothing"
        outcome.wrong_causes.append(f"it ended by {said}, as {run.facts.cause}")
    if run.state is not State.SUCCEEDED:
        outcome.false_verdicts.append(f"it is {run.state}")
    digests = {path.read_text() for path in run.output("main").glob("digest-*")}
    if digests != {_expected()} or len(list(run.output("main").glob("digest-*"))) != 2:
        outcome.false_verdicts.append("its result differs from that of an undisturbed run")
    if len(run.facts.task("main").jobs) > 1 and not fault.can_lose_job:
        outcome.false_verdicts.append(f"{len(run.facts.task('main').jobs)} chains of jobs")
    outcome.leftovers += [f"attempt {attempt} of rank {rank} began twice" for attempt, rank in stage.doubled(starts)]
    if not fault.is_local:
        with contextlib.suppress(AssertionError):
            until(lambda: not _queued(scene), "its jobs are gone from the queue", 60.0, poll_s=0.2)
        outcome.leftovers += [f"in the queue: {job}" for job in _queued(scene)]
    outcome.leftovers += [f"process {pid}: {line}" for pid, line in stage.survivors(run).items()]
    outcome.leftovers += [f"crashed: {path.read_text()}" for path in run.folder.jobs.rglob("*.crash")]


def _queued(scene: Scene) -> list[str]:
    jobs = scene.stage.lab.queued()
    return [f"{number} {job.state} {job.name}" for number, job in jobs.items() if scene.run.id in job.name]


def _expected() -> str:
    training = Training()
    while training.step < NUM_STEPS:
        training.advance()
    return training.digest()


def _lines(told: Path) -> list[Line]:
    """What user code has printed, by time."""
    if not told.exists():
        return []
    rows = (line.split(" ", 3) for line in told.read_text().splitlines())
    return [Line(float(at), int(attempt), int(rank), text) for at, attempt, rank, text in rows]


def _silence(told: Path, struck_at: float) -> float | None:
    """The longest time after the blow for which a replica printed nothing; None where all was printed before."""
    gaps = []
    for rank in range(2):
        times = [line.at for line in _lines(told) if line.rank == rank]
        gaps += [later - max(earlier, struck_at) for earlier, later in itertools.pairwise(times) if later > struck_at]
    return max(gaps, default=None)


def _compare_lines(scene: Scene, fault: Fault, outcome: Outcome, told: Path) -> None:
    """The log of each replica holds what it printed, but for last lines where the fault may take them."""
    printed: dict[tuple[int, int], list[Line]] = defaultdict(list)
    for line in _lines(told):
        printed[line.attempt, line.rank].append(line)
    for (attempt, rank), lines in sorted(printed.items()):
        path = scene.run.folder.logs / str(attempt) / "main" / f"{rank}.log"
        *logged, _torn = path.read_text().split("\n") if path.exists() else [""]
        wanted = [line.text for line in lines]
        num_lost = max(0, len(wanted) - len(logged))
        outcome.num_lost_lines += num_lost
        if logged[: len(wanted)] != wanted[: len(logged)]:
            outcome.lost_lines.append(f"the log of attempt {attempt}, rank {rank} has a hole")
        elif num_lost and fault.keeps_lines:
            outcome.lost_lines.append(f"{num_lost} lines of attempt {attempt}, rank {rank} are lost")
    spans = sorted(
        (attempt, min(line.at for line in lines), max(line.at for line in lines))
        for (attempt, _), lines in printed.items()
    )
    for attempt, _, end in spans:
        if any(later > attempt and begin < end for later, begin, _ in spans):
            outcome.false_verdicts.append(f"attempt {attempt} still printed when the next had begun")


def _clean_up(scene: Scene, fault: Fault) -> None:
    """Leave the lab to the next round as it was, after a round with problems as well."""
    if not scene.run.state.is_terminal:
        with contextlib.suppress(WindlassError, OSError):
            scene.run.stop(now=True)
    if fault.is_alone:
        scene.stage.lab.heal()


# --- the table -------------------------------------------------------------------------------------------------------

_HEAD = f"{'fault':36} rounds  wrong causes  false verdicts  leftovers  lost lines  median silence   attempts' ends"


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes by fault, and the sum."""
    rows = [_row(name, [outcome for outcome in outcomes if outcome.fault == name]) for name in FAULTS]
    return "\n".join([_HEAD, *rows, _row("all", outcomes)])


def _row(name: str, outcomes: Sequence[Outcome]) -> str:
    times = [outcome.recovery_s for outcome in outcomes if outcome.recovery_s is not None]
    median = f"{statistics.median(times):.1f} s" if times else "-"
    causes = Counter(cause for outcome in outcomes for cause in outcome.causes)
    return (
        f"{name:36} {len(outcomes):6}  {sum(len(o.wrong_causes) for o in outcomes):12}"
        f"  {sum(len(o.false_verdicts) for o in outcomes):14}  {sum(len(o.leftovers) for o in outcomes):9}"
        f"  {sum(o.num_lost_lines for o in outcomes):10}  {median:>15}"
        f"  {', '.join(f'{count} {cause}' for cause, count in causes.most_common())}"
    ).rstrip()
