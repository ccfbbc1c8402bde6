"""The one door to processes: run a command, know a process for sure, find and end its descendants."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, WaitTimeoutError

__all__ = [
    "Completed",
    "ProcessId",
    "boot_id",
    "descendants",
    "find_by_environment",
    "identify",
    "is_alive",
    "is_here",
    "parent_of",
    "process_world",
    "run",
    "send_signal",
    "session_members",
    "world_id",
]


@dataclass(frozen=True)
class Completed:
    """How a command ended."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class ProcessId:
    """A process that cannot be mistaken for another one with the same number: a later one, or one elsewhere.

    Attributes:
        world: within what the number means something: `<boot>.<PID namespace>`. Containers of one machine that begin
            together give the same number at the same tick to different processes.
    """

    pid: int
    start_ticks: int
    world: str

    def __str__(self) -> str:
        return f"{self.pid}:{self.start_ticks}:{self.world}"

    @classmethod
    def parse(cls, text: str) -> ProcessId:
        """Read back what `str` wrote; raises ValueError."""
        pid, ticks, world = text.split(":", 2)
        return cls(int(pid), int(ticks), world)


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout_s: float = 600.0,
) -> Completed:
    """Run a command to its end and capture what it printed; never raises for a non-zero code.

    Raises:
        PreconditionError: the program is not installed, or cannot be executed.
        WaitTimeoutError: it ran longer than `timeout_s`; it has been killed.
    """
    import subprocess  # lazy: a guard or a supervisor seldom runs a command

    try:
        done = subprocess.run(
            list(argv),
            cwd=None if cwd is None else str(cwd),
            env=None if env is None else dict(env),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=timeout_s,
        )
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise PreconditionError(f"no such folder: {cwd}", code="not-found") from error
        raise PreconditionError(
            f"`{argv[0]}` is not installed or not on the PATH",
            hint=f"install {argv[0]} and try again",
            code="program-missing",
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise PreconditionError(
            f"`{argv[0]}` cannot be run" + ("" if cwd is None else f" in {cwd}") + f": {reason}",
            hint=f"`command -v {argv[0]}` says which file it is; look at its permissions and at the PATH",
            code="program-missing",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise WaitTimeoutError(f"`{' '.join(argv)}` did not end within {timeout_s:g} s") from error
    return Completed(
        tuple(argv), done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )


def boot_id() -> str:
    """An id of this boot of this machine (in a container: of its host's)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]


@lru_cache(maxsize=1)
def world_id() -> str:
    """Within what this process's numbers mean something, in one word; no process leaves its namespace."""
    return f"{boot_id()}.{os.readlink('/proc/self/ns/pid')[len('pid:[') : -1]}"


def is_here(process: ProcessId) -> bool:
    """Whether the number of a process means something here; notes of older versions name the boot alone."""
    here = world_id()
    return process.world in (here, here.partition(".")[0])


def process_world() -> dict[str, str]:
    """Within what process numbers mean something: the machine, its boot, the PID namespace; each compared alone."""
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    namespace = os.readlink("/proc/self/ns/pid")
    return {"machine": machine or os.uname().nodename, "boot": boot_id(), "namespace": namespace}


def _stat(pid: int) -> tuple[str, int, int] | None:
    """(state letter, parent, start ticks) of a process; source: proc(5), /proc/pid/stat."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY)  # half the time of a file object; tables are long
        try:
            fields = os.read(descriptor, 4096).rpartition(b")")[2].split()
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[1]), int(fields[19])


def identify(pid: int) -> ProcessId | None:
    """The full identity of a living process, or None; a zombie is dead."""
    found = _stat(pid)
    if found is None or found[0] in "ZX":
        return None
    return ProcessId(pid, found[2], world_id())


def parent_of(pid: int) -> int:
    """The parent of a process; 0: the process is gone, or its parent cannot be seen from here."""
    found = _stat(pid)
    return 0 if found is None else found[1]


def is_alive(process: ProcessId) -> bool:
    """Whether exactly this process still runs, seen from here; a zombie or a reused number is dead."""
    found = identify(process.pid)
    return found is not None and found.start_ticks == process.start_ticks and is_here(process)


def _table() -> Iterator[tuple[int, str, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = _stat(int(name))
            if found is not None:
                yield int(name), found[0], found[1]


def descendants(*roots: int) -> list[int]:
    """Living processes below any of `roots`, children before grandchildren; zombies left out."""
    children: dict[int, list[int]] = {}
    dead = set()
    for pid, state, parent in _table():
        children.setdefault(parent, []).append(pid)
        if state in "ZX":
            dead.add(pid)
    found: dict[int, None] = {}
    queue, seen = list(roots), set(roots)
    while queue:
        for pid in children.get(queue.pop(0), ()):
            if pid not in seen:
                seen.add(pid)
                queue.append(pid)
            if pid not in dead:
                found[pid] = None
    return list(found)


def session_members(*leaders: ProcessId) -> list[int]:
    """Living processes of the sessions that `leaders` began, themselves included; a dead one's number is then not reused.

    Source: setsid(2); proc(5), stat: a session's id is its first process's, and stays taken while a member lives.
    """
    began = {leader.pid: leader.start_ticks for leader in leaders if is_here(leader)}
    found = []
    for name in os.listdir("/proc") if began else ():
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        is_member = int(fields[19]) >= began.get(int(fields[3]), sys.maxsize)
        if is_member and fields[0] not in (b"Z", b"X"):
            found.append(int(name))
    return found


def find_by_environment(name: str, *values: str) -> list[int]:
    """Living processes whose environment at start held `name` with one of the values; ours to read only."""
    needles = {f"{name}={value}".encode() for value in values}
    found = []
    for pid, state, _ in _table():
        if state in "ZX" or pid == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if not needles.isdisjoint(file.read().split(b"\0")):
                    found.append(pid)
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue
    return found


def send_signal(pid: int, number: int) -> bool:
    """Send a signal; False when the process is gone, or is one that we may not signal (another user's, a set-user-ID one)."""
    try:
        os.kill(pid, signal.Signals(number))
    except (ProcessLookupError, PermissionError):
        return False
    return True
