"""A real Slurm of virtual nodes on this machine, as root: `python -m tests.lab.slurm --help`.

Each node is a host of tests.lab.hosts with a slurmd inside; slurmctld, munged and, with accounting, slurmdbd and
MariaDB run on this machine, with their own keys, sockets and ports. GPUs are character devices: slurmd takes no files.

Slurm looks at time limits, `--signal` and grace times every 30 s only. A node is DOWN about 14 s after a power cut and
27 s after its cable is cut; what ran on it then goes on running.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.lab.accounting import limit_gpus, start_accounting
from tests.lab.guests import inhabitants
from tests.lab.hosts import Hosts, clean_environment, wait_until
from tests.lab.slots import Slot, claim, dismantle, find
from tests.lab.slurm_conf import Options, write_conf
from windlass.core import process

__all__ = ["QueuedJob", "SlurmLab", "slurm_labs"]

LOGIN = "login"
_NUMBER = re.compile(r"\bJobId=(\d+)")
_ASK_S = 0.1  # each look is a process, and the machine is busy
OVER = {
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "PREEMPTED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "BOOT_FAIL",
    "DEADLINE",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job in the queue; `submitted_s` since 1970."""

    state: str
    submitted_s: int
    name: str


class SlurmLab:
    """One Slurm; `SlurmLab(Options(...), name=...).up()`. It ends with this process unless it is kept.

    All methods block until what they say is true, and are idempotent.
    """

    def __init__(self, options: Options | None = None, *, name: str = "") -> None:
        self.options = options or Options()
        self.name = name or f"slurm-of-{os.getpid()}"
        self._slot: Slot | None = None
        self._hosts: Hosts | None = None

    @classmethod
    def open(cls, name: str) -> SlurmLab:
        """A lab that is up, in this process or in another; raises KeyError."""
        slot = find(name)
        saved = json.loads((slot.folder / "options.json").read_text())
        lab = cls(Options(**{**saved, "own": tuple(saved["own"])}), name=name)
        lab._settle(slot)
        return lab

    # -------------------------------------------------------------------------------------------------- the whole lab

    def up(self, *, is_kept: bool = False) -> None:
        """Start everything; returns when all nodes are idle. About a second, with accounting about eight."""
        if self._slot is not None:
            return
        self._settle(claim(self.name, is_kept=is_kept))
        try:
            (self.slot.folder / "options.json").write_text(json.dumps(asdict(self.options)))
            self._make_folder()
            self._start_munge()
            self.hosts.up()
            write_conf(self.folder, self.slot, self.options, self.hosts)
            if self.options.has_accounting:
                start_accounting(self.folder, self.slot, self.options)
            self.start_controller()
            for node in self.nodes:
                self._start_slurmd(node)
            if self.options.has_accounting:
                limit_gpus(self.folder, self.slot)
            self.wait_until_idle()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """End everything at once; no job, process, cable or file of the lab is left."""
        if self._slot is not None:
            dismantle(self._slot)
        self._slot = self._hosts = None

    def heal(self) -> None:
        """Cancel all jobs and bring every node, cable and the controller back; returns when all nodes are idle.

        Numbers that a killed controller gave and forgot are not given again: a node that knows one as its own refuses the
        job, and is drained.
        """
        self.start_controller()
        self._pass_forgotten_numbers()
        self.command("scancel", "--user=root", check=False)
        for pid in inhabitants(self.slot).guests:
            process.send_signal(pid, signal.SIGKILL)
        for host in self.hosts.names:
            self.join(host)
            self.start(host)
        self.wait_until_idle(resume=True)

    def is_whole(self) -> bool:
        """Whether the controller and every host are up, no cable is cut, and Slurm takes every node for usable."""
        hosts = self.hosts
        if self.controller is None or not all(hosts.is_up(host) and not hosts.is_cut(host) for host in hosts.names):
            return False
        if sum(_name(pid) == "slurmd" for pid in inhabitants(self.slot).own) < len(self.nodes):
            return False
        states = self._node_states()
        return set(states) == set(self.nodes) and set(states.values()) <= {"idle", "mixed", "allocated", "completing"}

    # -------------------------------------------------------------------------------------------------------- looking

    @property
    def slot(self) -> Slot:
        assert self._slot is not None, f"lab {self.name} is down"
        return self._slot

    @property
    def hosts(self) -> Hosts:
        """The nodes and the login host, with ssh."""
        assert self._hosts is not None, f"lab {self.name} is down"
        return self._hosts

    @property
    def folder(self) -> Path:
        """Slurm's files: slurm.conf, log/, state/ (StateSaveLocation), spool/<node>/."""
        return self.slot.folder / "slurm"

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.options.nodes

    @property
    def env(self) -> dict[str, str]:
        """What a command of Slurm needs in its environment, on this machine and on every host."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    @property
    def controller(self) -> process.ProcessId | None:
        """The slurmctld that runs."""
        try:
            pid = int((self.folder / "slurmctld.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None
        return process.identify(pid) if _name(pid) == "slurmctld" else None

    def ip(self, node: str) -> str:
        return self.hosts.ip(node)

    def command(self, *argv: str, check: bool = True, env: Mapping[str, str] | None = None) -> str:
        """Run a command of Slurm on this machine and return what it printed, without white space at its ends."""
        done = process.run(argv, env={**os.environ, **self.env, **(env or {})}, timeout_s=300)
        assert done.code == 0 or not check, f"{' '.join(argv)}: {done.code}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def run(
        self, node: str, argv: Sequence[str], *, env: Mapping[str, str] | None = None, check: bool = True
    ) -> process.Completed:
        """Run a command inside a node (or inside `login`) and capture what it prints."""
        return self.hosts.run(node, argv, env={**self.env, **(env or {})}, check=check)

    def job(self, job_id: str) -> dict[str, str]:
        """The fields of `scontrol show job`, of a job that ended as well; the words of a field stay together."""
        fields: dict[str, str] = {}
        for word in self.command("scontrol", "--oneliner", "show", "job", job_id).split(" "):
            key, equals, value = word.partition("=")
            if equals and key not in fields:
                fields[key] = value
        return fields

    def state(self, job_id: str) -> str:
        return self.job(job_id)["JobState"]

    def wait_for_state(self, job_id: str, *states: str, timeout_s: float = 300) -> str:
        """Wait until a job is in one of some states (any final one when none is named) and return which."""
        wanted = set(states) or OVER
        wait_until(
            lambda: self.state(job_id) in wanted,
            f"job {job_id} to be {' or '.join(sorted(wanted))}",
            timeout_s=timeout_s,
            poll_s=_ASK_S,
        )
        return self.state(job_id)

    def queued(self) -> dict[str, QueuedJob]:
        """Jobs that wait, run or are just ending, by id."""
        look = ["squeue", "--noheader", "--format=%i|%T|%V|%j"]
        lines = self.command(*look, env={"SLURM_TIME_FORMAT": "%s"}).splitlines()
        rows = (line.split("|", 3) for line in lines)
        return {row[0]: QueuedJob(state=row[1], submitted_s=int(row[2]), name=row[3]) for row in rows}

    def story(self, num_lines: int = 60) -> str:
        """The nodes, the newest jobs and the ends of the logs of the controller and of every node, for a failing test."""
        nodes = self.command("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T %E", check=False)
        look = ("squeue", "--noheader", "--states=all", "--sort=-i", "--format=%i %j %P %T %r %N from %S to %e")
        jobs = self.command(*look, check=False).splitlines()[:num_lines]
        parts = ["nodes:", nodes, "jobs:", *jobs]
        for name in ("slurmctld", *(f"slurmd.{node}" for node in self.nodes)):
            log = self.folder / "log" / f"{name}.log"
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            parts += [f"{name}:", *lines[-num_lines if name == "slurmctld" else -num_lines // 3 :]]
        return "\n".join(parts)

    def expect_empty_queue(self, *, timeout_s: float = 120) -> None:
        """Raise AssertionError when a job is still queued or running after `timeout_s`."""
        try:
            wait_until(lambda: not self.queued(), "an empty queue", timeout_s=timeout_s, poll_s=_ASK_S)
        except TimeoutError:
            raise AssertionError(f"left in the queue of {self.name}: {self.queued()}") from None

    def wait_until_idle(self, *, resume: bool = False, timeout_s: float = 240) -> None:
        """Wait until every node is idle, with no job and no fault; `resume` takes faults and drains away first."""
        try:
            wait_until(
                lambda: self._all_idle(resume=resume), f"idle nodes of {self.name}", timeout_s=timeout_s, poll_s=_ASK_S
            )
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n{self.story()}") from None

    def wait_for_node(self, node: str, *states: str, timeout_s: float = 300) -> None:
        """Wait until `sinfo` gives a node one of some states, such as "idle" or "down"."""
        wait_until(
            lambda: self._node_states().get(node, "").rstrip("*$~#!%@^-") in states,
            f"{node} to be {' or '.join(states)}",
            timeout_s=timeout_s,
            poll_s=_ASK_S,
        )

    def wait_until_log_says(self, node: str, words: str, timeout_s: float = 300) -> None:
        """Wait until a node's slurmd, or a step on it, has written some words into its log."""
        log = self.folder / "log" / f"slurmd.{node}.log"
        wait_until(lambda: words in log.read_text(errors="replace"), f"{words!r} in {log}", timeout_s=timeout_s)

    # ------------------------------------------------------------------------------------ breaking things

    def kill(self, node: str) -> None:
        """Cut a node's power."""
        self.hosts.kill(node)

    def start(self, node: str) -> None:
        """Boot a node and its slurmd; does not wait for the controller to see it."""
        self.hosts.start(node)
        if node in self.nodes:
            self._start_slurmd(node)

    def cut(self, node: str) -> None:
        """Unplug a node's network cable; what runs on it goes on."""
        self.hosts.cut(node)

    def join(self, node: str) -> None:
        """Plug a node's network cable in again."""
        if self.hosts.is_cut(node):
            self.hosts.join(node)

    def signal_daemon(self, node: str, number: signal.Signals) -> None:
        """Send a signal to a node's slurmd alone; what runs there goes on, and reports to the controller by itself."""
        for pid in self.hosts.processes(node):
            if _name(pid) == "slurmd":
                process.send_signal(pid, number)

    def kill_controller(self) -> None:
        """SIGKILL slurmctld. It forgets the last seconds (up to five), and will give the same job ids again."""
        controller = self.controller
        if controller is not None:
            process.send_signal(controller.pid, signal.SIGKILL)
            wait_until(lambda: not process.is_alive(controller), "slurmctld to die")

    def wait_until_remembered(self) -> None:
        """Wait until slurmctld has on disk what has happened so far; it saves jobs within five seconds of a change.

        A controller that is killed before brings back, as running, jobs of earlier tests that no node knows.
        """
        saved, begun = self.folder / "state" / "job_state", time.time()
        self._pass_forgotten_numbers()  # the change; a controller to which nothing happens saves nothing
        wait_until(lambda: _changed_at(saved) > begun, "slurmctld to save its jobs")

    def start_controller(self) -> None:
        """Start slurmctld with the state it has on disk; returns when it answers, seconds before it uses the nodes."""
        if self.controller is not None:
            return
        subprocess.run(["slurmctld"], env={**clean_environment(self.slot), **self.env}, check=True)
        wait_until(lambda: "is UP" in self.command("scontrol", "ping", check=False), "slurmctld")

    # --------------------------------------------------------------------------------------------------------- private

    def _pass_forgotten_numbers(self) -> None:
        """Use up, by jobs that never start, the numbers up to the highest that was ever given here."""
        log = (self.folder / "log" / "slurmctld.log").read_text(errors="replace")
        highest = max(map(int, _NUMBER.findall(log)), default=0)
        used = 0
        while used <= highest:
            used = int(self.command("sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true"))
            self.command("scancel", str(used))

    def _settle(self, slot: Slot) -> None:
        self._slot = slot
        names = (*self.nodes, *([LOGIN] if self.options.has_login else []))
        self._hosts = Hosts(slot, names, own=self.options.own, exported=self.env)

    def _make_folder(self) -> None:
        for part in ("log", "spool", "state", "gpu"):
            (self.folder / part).mkdir(parents=True)
        for number in range(self.options.gpus):
            os.mknod(self.folder / "gpu" / f"gpu{number}", stat.S_IFCHR | 0o666, os.makedev(1, 3))

    def _start_munge(self) -> None:
        folder = self.folder
        key = folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        argv = ["munged", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
        argv += [f"--pid-file={folder}/munged.pid", f"--log-file={folder}/log/munged.log"]
        argv += [f"--seed-file={folder}/munge.seed"]
        subprocess.run(argv, env=clean_environment(self.slot), capture_output=True, check=True)

    def _start_slurmd(self, node: str) -> None:
        if any(_name(pid) == "slurmd" for pid in self.hosts.processes(node)):
            return
        argv = self.hosts.inside(node, ["slurmd", "-N", node])
        subprocess.run(argv, env={**clean_environment(self.slot), **self.env}, check=True)

    def _node_states(self) -> dict[str, str]:
        """As `sinfo` says; a mark behind a state, such as the `*` of a silent node, is kept."""
        printed = self.command("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T", check=False)
        return dict(line.split() for line in printed.splitlines() if len(line.split()) == 2)

    def _all_idle(self, *, resume: bool) -> bool:
        states = self._node_states()
        faulty = [node for node, state in states.items() if state.startswith(("down", "drain"))]
        if faulty and resume:
            self.command("scontrol", "update", f"nodename={','.join(faulty)}", "state=resume", check=False)
        return set(states) == set(self.nodes) and set(states.values()) == {"idle"}


def slurm_labs(slots: Sequence[Slot]) -> list[SlurmLab]:
    """The labs with Slurm among some slots."""
    return [SlurmLab.open(slot.name) for slot in slots if (slot.folder / "slurm" / "slurmctld.pid").exists()]


def _changed_at(path: Path) -> float:
    """When a file was written; 0 while it is not there, as slurmctld renames the old one before the new."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


if __name__ == "__main__":
    from tests.lab.command_line import main

    sys.exit(main())
