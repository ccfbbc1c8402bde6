"""The faults of the chaos: what is struck, where, and what may be said of the attempts that it ends."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.system.slurm.slurm_stage import SlurmStage
from tests.system.slurm.test_ends import sruns, step_daemons
from tests.system.stage import until
from tests.system.test_foreign_user import attack
from windlass import Run
from windlass.core.process import send_signal

__all__ = ["FAULTS", "Fault", "Scene", "windlass"]

_LONGEST_RESTART_S = 5.0
_LONGEST_SUSPENSION_S = 8.0
_LOOK_S = 5.0
"""What a command that only looks may wait for a scheduler that does not answer."""


@dataclass(slots=True)
class Scene:
    """One run and what befalls it; `problems` are what the blow itself has seen go wrong."""

    stage: SlurmStage
    run: Run
    die: random.Random
    saved_jobs: bytes = b""
    cut_node: str = ""
    problems: list[str] = field(default_factory=list)

    def pick_rank(self) -> int:
        return self.die.randrange(2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of blow.

    Attributes:
        causes: what an attempt may end by because of it; without any, no attempt may end.
        is_local: the run is on this machine, and not on Slurm.
        is_alone: nothing else may run beside it, for it strikes the whole cluster.
        is_after: it strikes after the run has ended.
        keeps_lines: every line that was printed must be in the log.
        can_lose_job: the job itself is gone, so that another one is submitted.
        pause_s: between two steps; longer where it takes a while until the blow is felt.
    """

    strike: Callable[[Scene], None]
    causes: frozenset[str] = frozenset()
    is_local: bool = False
    is_alone: bool = False
    is_after: bool = False
    keeps_lines: bool = True
    can_lose_job: bool = False
    pause_s: float = 0.2


def windlass(scene: Scene, *arguments: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own, `path` before its PATH."""
    env = {**os.environ, "WINDLASS_HOME": str(scene.stage.home.path)}
    if path:
        env["PATH"] = f"{path}{os.pathsep}{env['PATH']}"
    argv = [sys.executable, "-m", "windlass", *arguments]
    done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, env=env)
    if done.returncode != 0:
        scene.problems.append(f"windlass {' '.join(arguments)}: {done.returncode} {done.stderr}")
    return done


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        send_signal(pid, signal.SIGKILL)


def found(scene: Scene, look: Callable[[], list[int]], what: str) -> list[int]:
    """The processes to strike, once there are any; none where the run has ended before."""
    until(lambda: bool(look()) or scene.run.state.is_terminal, what, story=lambda: scene.stage.story(scene.run))
    return look()


# --- the controller --------------------------------------------------------------------------------------------------


def _restart_controller(scene: Scene) -> None:
    scene.stage.lab.kill_controller()
    time.sleep(scene.die.uniform(0.0, _LONGEST_RESTART_S))
    scene.stage.lab.start_controller()


def _forget(scene: Scene) -> None:
    """The controller comes back with the jobs of before the launch, or with none and the first numbers again."""
    lab = scene.stage.lab
    lab.kill_controller()
    if scene.saved_jobs and scene.die.random() < 0.5:
        (lab.folder / "state" / "job_state").write_bytes(scene.saved_jobs)
    else:
        (lab.folder / "state" / "job_state").unlink(missing_ok=True)
    (lab.folder / "state" / "job_state.old").unlink(missing_ok=True)
    time.sleep(scene.die.uniform(0.0, _LONGEST_RESTART_S))
    lab.start_controller()


# --- Slurm's programs on the nodes, and the nodes --------------------------------------------------------------------


def _kill_srun(scene: Scene) -> None:
    kill_all(found(scene, lambda: sruns(scene.run), "srun runs"))


def _kill_step_daemons(scene: Scene) -> None:
    which = scene.die.choice(("batch", "first", "last", "all"))

    def look() -> list[int]:
        job = next(iter(scene.stage.job_ids(scene.run)[-1:]), "")
        pids = step_daemons(scene.stage, f"{job}.batch" if which == "batch" else f"{job}.0") if job else []
        return {"first": pids[:1], "last": pids[-1:]}.get(which, pids)

    kill_all(found(scene, look, "a step's daemon runs"))


def _host(scene: Scene, rank: int) -> str:
    newest = scene.run.facts.task("main").newest_attempt
    return newest.replicas[rank].host if newest is not None and rank in newest.replicas else ""


def _cut_power(scene: Scene, rank: int) -> None:
    until(lambda: bool(_host(scene, rank)), f"rank {rank} has a node", story=lambda: scene.stage.story(scene.run))
    scene.cut_node = _host(scene, rank)
    scene.stage.lab.kill(scene.cut_node)
    scene.stage.lab.wait_for_node(scene.cut_node, "down")
    scene.stage.lab.start(scene.cut_node)


def _suspend(scene: Scene) -> None:
    lab = scene.stage.lab
    until(lambda: bool(scene.stage.job_ids(scene.run)), "a link has begun")
    job = scene.stage.job_ids(scene.run)[-1]
    lab.command("scontrol", "suspend", job)
    until(lambda: lab.state(job) == "SUSPENDED" or scene.run.state.is_terminal, "it is suspended", poll_s=0.1)
    if scene.run.state.is_terminal:
        return
    began = time.monotonic()
    shown = windlass(scene, "show", scene.run.id).stdout
    if "suspended" not in shown:
        scene.problems.append(f"while suspended it was shown as\n{shown}")
    time.sleep(max(0.0, scene.die.uniform(0.5, _LONGEST_SUSPENSION_S) - (time.monotonic() - began)))
    lab.command("scontrol", "resume", job)


# --- processes of windlass -----------------------------------------------------------------------------------------------


def _replica(scene: Scene, rank: int, is_local: bool) -> dict[str, list[int]]:
    """The guard, the supervisor and the user's code of a replica, as far as each of them is there."""
    stage, run = scene.stage, scene.run
    if is_local:
        return {
            "guard": [pid for pid in [stage.ours(run, "guard", rank)] if pid],
            "supervisor": [pid for pid in [stage.ours(run, "supervisor", rank)] if pid],
            "code": [pid for pid in [stage.user(run, rank)] if pid],
        }
    host = _host(scene, rank)
    here = set(stage.lab.hosts.processes(host)) if host else set()
    lines = {pid: line for pid, line in stage.inhabitants(run).items() if pid in here}
    ours = {pid for pid, line in lines.items() if " link " in line}
    parents = {pid: _parent(pid) for pid in lines}
    code = [pid for pid in lines if pid not in ours]
    return {
        "guard": [pid for pid in ours if parents[pid] not in ours],
        "supervisor": [parents[pid] for pid in code if parents[pid] in ours],
        "code": code,
        "others": sorted(ours),
    }


def _parent(pid: int) -> int:
    """Source: proc(5), /proc/pid/stat."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _kill_ours(what: str, is_local: bool) -> Callable[[Scene], None]:
    def strike(scene: Scene) -> None:
        rank = scene.pick_rank()

        def look() -> list[int]:
            there = _replica(scene, rank, is_local)
            wanted = there if what == "replica" else {what: there[what]}
            return [pid for pids in wanted.values() for pid in pids] if all(wanted.values()) else []

        kill_all(found(scene, look, f"{what} of rank {rank} lives"))

    return strike


# --- looking, and strangers ------------------------------------------------------------------------------------------


def _hang_scheduler(scene: Scene) -> None:
    folder = scene.stage.code.parent / f"bin-{scene.run.id}"
    folder.mkdir()
    for name in ("squeue", "sacct", "sinfo", "scontrol"):
        (folder / name).write_text("#!/bin/sh\nexec sleep 1000\n")
        (folder / name).chmod(0o755)
    began = time.monotonic()
    windlass(scene, "show", scene.run.id)
    quick_s = time.monotonic() - began
    if scene.run.state.is_terminal:
        return
    said = windlass(scene, "show", scene.run.id, path=str(folder))
    took_s = time.monotonic() - began - quick_s
    if took_s > 2 * _LOOK_S + 3 * quick_s:  # as much again for a machine that is busy
        scene.problems.append(f"show took {took_s:.1f} s, {quick_s:.1f} s with a scheduler that answers")
    if "did not respond to `squeue" not in said.stderr and not scene.run.state.is_terminal:
        scene.problems.append(f"show did not say that squeue hangs: {said.stderr}")


def _damage_journal(scene: Scene) -> None:
    """A look at a run that has ended starts nothing, whatever is left of its journal."""
    path = scene.die.choice(sorted(scene.run.folder.journal.glob("main.*.wj")))
    whole = path.read_bytes()
    how = scene.die.choice(("truncated", "emptied", "removed"))
    if how == "removed":
        path.unlink()
    else:
        path.write_bytes(whole[: scene.die.randrange(1, len(whole))] if how == "truncated" else b"")
    before = sorted(folder.name for folder in scene.run.folder.jobs.iterdir())
    shown = windlass(scene, "show", scene.run.id, "--json").stdout
    state = json.loads(shown)["state"] if shown else "nothing"
    if state != "succeeded":
        scene.problems.append(f"with {path.name} {how} it is shown as {state}")
    if sorted(folder.name for folder in scene.run.folder.jobs.iterdir()) != before:
        scene.problems.append(f"with {path.name} {how} a look started a job")


def _send_garbage(scene: Scene) -> None:
    """Another user of the machine, without the token."""
    folder = scene.run.folder.jobs / "main-1"
    until(lambda: any(folder.glob("leader-*.json")), "a leader", story=lambda: scene.stage.story(scene.run))
    port = json.loads(max(folder.glob("leader-*.json")).read_text())["port"]
    attacker = attack(scene.die.choice(("deep", "slow", "flood")), port)
    assert attacker.stdin is not None
    assert attacker.stdout is not None
    try:
        until(lambda: scene.run.state.is_terminal, "the run ends in spite of it", timeout_s=120)
    finally:
        attacker.stdin.close()
        attacker.kill()
        attacker.wait()
        attacker.stdout.close()
    if len(list(folder.glob("leader-*.json"))) > 1:
        scene.problems.append("strangers brought about another leader")


_KILLED = frozenset({"killed"})
_LOST = frozenset({"node-lost"})
_UNKNOWN = frozenset({"unknown"})
"""A controller that lost a job says nothing of it, and a job that had not begun has nobody else to say it."""

FAULTS: dict[str, Fault] = {
    "slurmctld killed, back 0-5 s later": Fault(
        strike=_restart_controller,
        causes=_KILLED | _UNKNOWN,
        is_alone=True,
        keeps_lines=False,
        can_lose_job=True,
        pause_s=0.4,
    ),
    "slurmctld killed, its jobs forgotten": Fault(
        strike=_forget,
        causes=_KILLED | _UNKNOWN | {"node-unhealthy"},  # it ends what it does not know, and nobody can say how
        is_alone=True,
        keeps_lines=False,
        can_lose_job=True,
        pause_s=0.4,
    ),
    "srun killed": Fault(strike=_kill_srun, causes=_KILLED, keeps_lines=False),
    "slurmstepd killed": Fault(strike=_kill_step_daemons),
    "power cut, node of rank 0": Fault(
        strike=lambda scene: _cut_power(scene, 0), causes=_LOST, is_alone=True, keeps_lines=False
    ),
    "power cut, node of rank 1": Fault(
        strike=lambda scene: _cut_power(scene, 1), causes=_LOST, is_alone=True, keeps_lines=False
    ),
    "supervisor killed, Slurm": Fault(strike=_kill_ours("supervisor", is_local=False)),
    "guard killed, Slurm": Fault(strike=_kill_ours("guard", is_local=False)),
    "replica's processes killed, Slurm": Fault(
        strike=_kill_ours("replica", is_local=False), causes=_KILLED, keeps_lines=False
    ),
    "suspended and resumed": Fault(strike=_suspend),
    "squeue hangs during show": Fault(strike=_hang_scheduler),
    "supervisor killed, here": Fault(strike=_kill_ours("supervisor", is_local=True), is_local=True),
    "guard killed, here": Fault(strike=_kill_ours("guard", is_local=True), is_local=True),
    "replica's processes killed, here": Fault(
        strike=_kill_ours("replica", is_local=True),
        causes=_KILLED,
        is_local=True,
        keeps_lines=False,
        can_lose_job=True,
    ),
    "journal damaged, then show": Fault(strike=_damage_journal, is_local=True, is_after=True),
    "another user's frames": Fault(strike=_send_garbage, is_local=True),
}
"""By the name in the table."""
