"""Who is in a lab: its own processes, and the jobs, steps, logins and commands of tests that run in its hosts."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.lab.slots import MARK, Slot
from windlass.core import process

__all__ = ["Inhabitants", "inhabitants"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inhabitants:
    """Living processes of a lab, by this machine's numbers.

    Attributes:
        own: the hosts' first processes and the daemons, here and in the hosts.
        guests: all others in the hosts; a job's slurmstepd is one, for it lives as long as the job.
    """

    own: frozenset[int]
    guests: frozenset[int]


def inhabitants(slot: Slot) -> Inhabitants:
    """Look at all processes of this machine once.

    A lab's process is known by the mark in its environment. Two write their title over that: sshd is known by its
    file, slurmscriptd by its parent.
    A job's environment comes from who submitted it and a login's from sshd: they never have the mark.
    """
    worlds, doors = _hosts(slot)
    marked = process.find_by_environment(MARK, str(slot.folder))
    own = {pid for pid in marked if _command_name(pid) != "slurmstepd"}
    for pid in [pid for pid in own if _command_name(pid) == "slurmctld"]:
        own |= {below for below in process.descendants(pid) if _command_name(below) == "slurmscriptd"}
    inside = {pid: world for pid in process.descendants(1) if (world := _link(f"/proc/{pid}/ns/pid")) in worlds}
    own |= {pid for pid, world in inside.items() if (world, _inner(pid)) in doors}
    return Inhabitants(own=frozenset(own), guests=frozenset(set(inside) - own))


def _hosts(slot: Slot) -> tuple[set[str], set[tuple[str, str]]]:
    """The hosts' PID namespaces, and in which of them which inner number is the listening sshd."""
    worlds, doors = set(), set()
    for disk in (slot.folder / "hosts").glob("*"):
        init = process.ProcessId.parse(_text(disk / "init") or "0:0:none")
        if process.is_alive(init):
            world = _link(f"/proc/{init.pid}/ns/pid")
            worlds.add(world)
            doors.add((world, _text(disk / "sshd.pid").strip()))
    return worlds, doors


def _inner(pid: int) -> str:
    """A process's number in its own PID namespace; source: proc(5), /proc/pid/status, NSpid."""
    lines = _text(Path(f"/proc/{pid}/status")).splitlines()
    return next((line.split()[-1] for line in lines if line.startswith("NSpid:")), "")


def _command_name(pid: int) -> str:
    return _text(Path(f"/proc/{pid}/comm")).strip()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""
