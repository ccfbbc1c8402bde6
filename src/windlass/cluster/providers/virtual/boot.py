"""Boot and end of one virtual machine: its processes and its cable."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from windlass.cluster.providers.virtual import init
from windlass.cluster.providers.virtual.network import CloudNetwork
from windlass.cluster.providers.virtual.records import CloudFolder, MachineRecord
from windlass.core import process
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.json_text import decode_json

__all__ = ["ID", "METADATA", "Booter", "environment_of", "home_folder"]

ID = "WINDLASS_VIRTUAL_ID"
"""Variable of the first processes of a machine, of its user data and of shells: the machine's id."""

METADATA = "WINDLASS_VIRTUAL_METADATA"
"""Variable of user data and of shells: address and port of the metadata, which knows a machine by its address."""

_OWN = ("/dev/shm", "/tmp")  # noqa: S108 - each machine has its own
_NAMESPACES = ("--net", "--uts", "--ipc", "--pid", "--fork", "--mount", "--mount-proc", "--propagation", "slave")
_BOOT_S = 120.0
_POLL_S = 0.01


def home_folder() -> str:
    """Return the home folder of this user, which each machine has on top of this machine's."""
    import pwd  # lazy: only on a machine that has the namespaces

    return pwd.getpwuid(os.geteuid()).pw_dir


def environment_of(machine: str, metadata: str) -> dict[str, str]:
    """Return the environment of user data and of shells on a machine."""
    path = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    return {
        "PATH": path if "/sbin" in path else f"{path}:/usr/sbin:/sbin",
        "HOME": home_folder(),
        "USER": "root",
        "LOGNAME": "root",
        "SHELL": "/bin/sh",
        "LANG": "C.UTF-8",
        "HOSTNAME": machine,
        ID: machine,
        METADATA: metadata,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Booter:
    """Makes and ends the processes of machines.

    Attributes:
        metadata: address and port of the metadata.
    """

    folder: CloudFolder
    network: CloudNetwork
    metadata: str

    def boot(self, record: MachineRecord, is_wanted: Callable[[], bool]) -> process.ProcessId:
        """Boot a machine up to its network and return its process 1; its user data waits for `go`.

        Raises:
            PreconditionError: it did not boot, or is no longer wanted.
        """
        folder = self.folder.machine(record.id)
        (folder / "disk").mkdir(exist_ok=True)
        for name in ("ready", "go", "end"):
            (folder / name).unlink(missing_ok=True)
        outer = self._start(record, folder)
        end_s = time.monotonic() + _BOOT_S
        while not (folder / "ready").exists():
            if outer.poll() is not None or time.monotonic() > end_s or not is_wanted():
                raise PreconditionError(f"it did not boot: {_last_line(folder / 'boot.log')}", code="node-failed")
            time.sleep(_POLL_S)
        found = _child(outer.pid)
        if found is None:
            raise PreconditionError("it did not boot: process 1 is gone", code="node-failed")
        slow_s = time.monotonic() + record.slow_s
        while time.monotonic() < slow_s and is_wanted():
            time.sleep(_POLL_S)
        self.network.connect(record.number, found.pid)
        return found

    def _start(self, record: MachineRecord, folder: Path) -> subprocess.Popen[bytes]:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        environment = environment_of(record.id, self.metadata)
        kept = dict.fromkeys((sys.prefix, sys.base_prefix, str(Path(init.__file__).parents[4])))
        settings = {
            "id": record.id,
            "folder": descriptor,
            "disk": str(folder / "disk"),
            "home": environment["HOME"],
            "own": _OWN,
            "kept": [path for path in kept if path.startswith(tuple(f"{own}/" for own in _OWN))],
            "gateway": self.network.address,
            "address": f"{self.network.prefix}.{record.number}",
            "deadline_at": record.deadline_at,
            "environment": environment,
        }
        program = [sys.executable, "-I", "-S", init.__file__, json.dumps(settings)]
        try:
            with (folder / "boot.log").open("ab") as log:
                return subprocess.Popen(
                    ["unshare", *_NAMESPACES, *program],
                    env=environment,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[descriptor],
                    start_new_session=True,
                )
        finally:
            os.close(descriptor)

    def go(self, machine: str) -> None:
        """Let a machine's user data run; idempotent."""
        (self.folder.machine(machine) / "go").touch()

    def kill(self, records: Sequence[MachineRecord]) -> list[str]:
        """Kill all processes of machines; return the ids of those that have none left.

        One that has a child in a machine (`nsenter`) is left to reap it and end by itself: a PID namespace does not end
        before its processes are reaped, all but its process 1, and who would adopt them may reap nothing.
        """
        for record in records:
            if record.init and process.is_alive(found := process.ProcessId.parse(record.init)):
                process.send_signal(found.pid, signal.SIGKILL)
        left: set[str] = set()
        for pid in process.find_by_environment(ID, *(each.id for each in records)):
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                left |= {each.id for each in records if f"{ID}={each.id}".encode() in words}
            process.send_signal(pid, signal.SIGCONT if _reaps_others(pid) else signal.SIGKILL)
        return [each.id for each in records if each.id not in left and not _has_init(each)]

    def clean(self, record: MachineRecord) -> None:
        """Remove what an ended machine has on this machine, but for its log; idempotent."""
        self.network.disconnect(record.number)
        shutil.rmtree(self.folder.machine(record.id) / "disk", ignore_errors=True)

    def end_of(self, machine: str) -> tuple[str, float] | None:
        """Return why and when a machine ended itself; None if it did not."""
        try:
            data = decode_json((self.folder.machine(machine) / "end").read_bytes())
        except FileNotFoundError:
            return None
        return str(data["why"]), float(data["at"])


def _has_init(record: MachineRecord) -> bool:
    return bool(record.init) and process.is_alive(process.ProcessId.parse(record.init))


def _child(outer: int) -> process.ProcessId | None:
    children = _children(outer)
    return process.identify(children[0]) if children else None


def _children(pid: int) -> list[int]:
    """Return the children of a process's main thread, those that it has not reaped included."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _reaps_others(pid: int) -> bool:
    """Return whether a process of our own PID namespace has a child in another, which is not that one's process 1."""
    numbers = [_numbers(child) for child in _children(pid)]
    return len(_numbers(pid)) == 1 and any(len(each) > 1 and each[-1] != "1" for each in numbers)


def _numbers(pid: int) -> list[str]:
    """Return a process's numbers in our PID namespace and in those below, even if it was not reaped; proc(5), NSpid."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1][:200] if lines else "no output"
