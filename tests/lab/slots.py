"""Places for labs: each has its own folder, bridge, network and ports, so that several may be up at once.

A lab belongs to the process that claimed its slot and ends with it: what a killed process left is taken down by the
next claim. A lab that a person keeps belongs to nobody and stays until it is taken down by name.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from windlass.core import process

__all__ = ["MARK", "ROOT", "Slot", "claim", "claimed", "dismantle", "find", "group_of", "mine"]

# Neither below /tmp nor below a home folder: hosts may have their own of both.
ROOT = Path("/var/tmp/windlass-labs")
# Every process of a lab, but none of a job or of a login in it, has this variable: the lab's folder.
MARK = "WINDLASS_LAB_FOLDER"
NUM_SLOTS, NUM_PORTS = 64, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A claimed place; `owner` is the process it ends with, or empty when a person keeps it."""

    number: int
    name: str
    owner: str

    @property
    def folder(self) -> Path:
        return ROOT / str(self.number)

    @property
    def bridge(self) -> str:
        return f"wlb{self.number}"

    @property
    def network(self) -> str:
        """The first three bytes of the network's addresses; this machine is .1 in it."""
        return f"10.177.{self.number}"

    def port(self, offset: int) -> int:
        """A port of this machine that is this slot's alone, `offset` below NUM_PORTS."""
        return 17000 + 10 * self.number + offset

    @property
    def is_taken_by_others(self) -> bool:
        """Whether something on this machine that is no lab has the network or a port already."""
        if (Path("/sys/class/net") / self.bridge).exists() or _can_bind(f"{self.network}.1", 0):
            return True
        return not all(_can_bind("", self.port(offset)) for offset in range(NUM_PORTS))

    @property
    def is_left_over(self) -> bool:
        return bool(self.owner) and not process.is_alive(process.ProcessId.parse(self.owner))


def claim(name: str, *, is_kept: bool = False) -> Slot:
    """Take a free slot for this process, or for a person who keeps it; takes down what dead processes left."""
    with _lock():
        for slot in claimed():
            if slot.is_left_over:
                dismantle(slot)
        taken = {slot.number: slot.name for slot in claimed()}
        if name in taken.values():
            raise ValueError(f"a lab named {name} is up already")
        owner = "" if is_kept else str(process.identify(os.getpid()))
        slots = (Slot(number=number, name=name, owner=owner) for number in range(NUM_SLOTS) if number not in taken)
        slot = next(slot for slot in slots if not slot.is_taken_by_others)
        slot.folder.mkdir(mode=0o755)
        (slot.folder / "slot.json").write_text(json.dumps(asdict(slot)))
    return slot


def claimed() -> list[Slot]:
    """All slots that are taken, by whomever."""
    found = []
    for folder in sorted(ROOT.glob("[0-9]*")):
        try:
            slot = Slot(**json.loads((folder / "slot.json").read_text()))
        except (FileNotFoundError, ValueError):  # its claimant is just at it, or died: claims hold the lock
            slot = Slot(number=int(folder.name), name="", owner="0:0:none")
        found.append(slot)
    return found


def mine() -> list[Slot]:
    """The slots that this process claimed."""
    me = str(process.identify(os.getpid()))
    return [slot for slot in claimed() if slot.owner == me]


def find(name: str) -> Slot:
    """The slot that was claimed under a name; raises KeyError."""
    for slot in claimed():
        if slot.name == name:
            return slot
    raise KeyError(f"no lab named {name} is up; up are: {', '.join(slot.name for slot in claimed()) or 'none'}")


def dismantle(slot: Slot) -> None:
    """End every process of a lab at once, remove its network and its folder; idempotent.

    The hosts' own processes hold their PID namespaces, so whatever ran inside dies with them. Containers of an engine
    are known by their control group.
    """
    deadline = time.monotonic() + 60
    while left := [*process.find_by_environment(MARK, str(slot.folder)), *_members(slot)]:
        for pid in left:
            process.send_signal(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of {slot.folder} do not die: {left}")
        time.sleep(0.01)
    for link in _links(slot):
        subprocess.run(["ip", "link", "del", link], capture_output=True)  # a cable may vanish with its host
    for group in _groups(slot):
        for folder in sorted([group, *group.rglob("*/")], reverse=True):
            folder.rmdir()
    for mount in _mounts(slot):
        subprocess.run(["umount", "--lazy", mount], capture_output=True)
    shutil.rmtree(slot.folder, ignore_errors=True)


def group_of(slot: Slot) -> str:
    """The control group of a lab's containers."""
    return f"windlass-lab-{slot.number}"


def _groups(slot: Slot) -> list[Path]:
    """In each hierarchy of cgroups version 1, or in the one of version 2."""
    root = Path("/sys/fs/cgroup")
    return [path for path in (root / group_of(slot), *root.glob(f"*/{group_of(slot)}")) if path.is_dir()]


def _members(slot: Slot) -> list[int]:
    texts = [path.read_text() for group in _groups(slot) for path in group.rglob("cgroup.procs")]
    return sorted({int(word) for text in texts for word in text.split()} - {0})


def _mounts(slot: Slot) -> list[str]:
    points = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    return sorted((point for point in points if Path(point).is_relative_to(slot.folder)), reverse=True)


def _can_bind(address: str, port: int) -> bool:
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of an earlier lab may linger
        try:
            door.bind((address, port))
        except OSError:
            return False
    return True


def _links(slot: Slot) -> list[str]:
    """The host cables' outer ends, an engine's networks, and the bridge last."""
    names = [path.name for path in Path("/sys/class/net").iterdir()]
    cables = sorted(name for name in names if name.startswith(f"{slot.bridge}-"))
    look = ["ip", "-oneline", "-4", "address", "show", "to", f"{slot.network}.0/24"]
    found = subprocess.run(look, capture_output=True, text=True).stdout.splitlines()
    return list(dict.fromkeys([*cables, *(line.split()[1] for line in found), *[slot.bridge] * (slot.bridge in names)]))


@contextmanager
def _lock() -> Iterator[None]:
    ROOT.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (ROOT / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
