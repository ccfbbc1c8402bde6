"""Processes: running a command, identifying a process reliably, finding and ending its descendants."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError, WaitTimeoutError
from windlass.core.units import format_size

if TYPE_CHECKING:
    import subprocess

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


OUTPUT_LIMIT_BYTES = 64 << 20
"""Default limit of a command's output in bytes; a command that prints more is killed."""

_PIECE_BYTES = 1 << 16


@dataclass(frozen=True)
class Completed:
    """Result of a command: its exit code and output."""

    argv: tuple[str, ...]
    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class ProcessId:
    """Identity of a process, unique even among later processes and other machines.

    Attributes:
        world: scope of the number: `<boot>.<PID namespace>`. Containers of one machine that begin together may give
            the same number at the same tick to different processes.
    """

    pid: int
    start_ticks: int
    world: str

    def __str__(self) -> str:
        return f"{self.pid}:{self.start_ticks}:{self.world}"

    @classmethod
    def parse(cls, text: str) -> ProcessId:
        """Decode the `str` form; raises ValueError."""
        pid, ticks, world = text.split(":", 2)
        return cls(int(pid), int(ticks), world)


def run(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout_s: float = 600.0,
    limit_bytes: int = OUTPUT_LIMIT_BYTES,
) -> Completed:
    """Run a command until it ends and capture its output; never raises for a non-zero exit code.

    Args:
        limit_bytes: maximum size of standard output and standard error together.

    Raises:
        PreconditionError: the program is not installed or cannot be executed, or it printed more than `limit_bytes`
            (`invalid-reply`) and has been killed.
        WaitTimeoutError: it ran longer than `timeout_s`; it has been killed.
    """
    with _start(argv, cwd, env, has_input=stdin is not None) as process:
        try:
            stdout, stderr = _communicate(process, stdin or b"", time.monotonic() + timeout_s, limit_bytes)
        except BaseException as error:
            process.kill()
            if isinstance(error, TimeoutError):
                raise WaitTimeoutError(f"`{' '.join(argv)}` did not end within {timeout_s:g} s") from error
            if isinstance(error, OverflowError):
                message = f"`{' '.join(argv)[:200]}` printed more than {format_size(limit_bytes)} and was ended"
                raise PreconditionError(message, code="invalid-reply") from error
            raise
    return Completed(tuple(argv), process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


def _start(
    argv: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None, *, has_input: bool
) -> subprocess.Popen[bytes]:
    import subprocess  # lazy: guards and supervisors rarely run commands

    try:
        return subprocess.Popen(
            list(argv),
            cwd=None if cwd is None else str(cwd),
            env=None if env is None else dict(env),
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
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
            hint=f"`command -v {argv[0]}` prints its path; check its permissions and the PATH",
            code="program-missing",
        ) from error


def _communicate(
    process: subprocess.Popen[bytes], content: bytes, deadline: float, limit_bytes: int
) -> tuple[bytes, bytes]:
    """Write to a process's input, read its output and wait for its end.

    Raises:
        TimeoutError: the deadline, on the monotonic clock, has passed.
        OverflowError: it printed more than `limit_bytes`.
    """
    import selectors  # lazy: as subprocess
    import subprocess

    assert process.stdout is not None
    assert process.stderr is not None
    out, err, unsent = bytearray(), bytearray(), memoryview(content)
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        while selector.get_map():
            for key, _ in selector.select(max(0.0, deadline - time.monotonic())):
                if key.data is None:
                    try:
                        unsent = unsent[os.write(key.fd, unsent[:_PIECE_BYTES]) :]
                    except BrokenPipeError:
                        unsent = unsent[:0]  # a process need not read its input
                    if not unsent:
                        selector.unregister(key.fileobj)
                        key.fileobj.close()  # type: ignore[union-attr]
                    continue
                piece = os.read(key.fd, _PIECE_BYTES)
                key.data.extend(piece)
                if not piece:
                    selector.unregister(key.fileobj)
            if len(out) + len(err) > limit_bytes:
                raise OverflowError
            if time.monotonic() >= deadline:
                raise TimeoutError
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    return bytes(out), bytes(err)


def boot_id() -> str:
    """Return an id for the current boot of this machine (in a container: of the host)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]


@lru_cache(maxsize=1)
def world_id() -> str:
    """Return the scope in which process numbers are valid, as one word; a process never leaves its namespace."""
    return f"{boot_id()}.{os.readlink('/proc/self/ns/pid')[len('pid:[') : -1]}"


def is_here(process: ProcessId) -> bool:
    """Return whether a process number is valid in this boot and PID namespace; older records name only the boot."""
    here = world_id()
    return process.world in (here, here.partition(".")[0])


def process_world() -> dict[str, str]:
    """Return the scope in which process numbers are valid: machine, boot and PID namespace, as separate values."""
    try:
        machine = Path("/etc/machine-id").read_text().strip()
    except OSError:
        machine = ""
    namespace = os.readlink("/proc/self/ns/pid")
    return {"machine": machine or os.uname().nodename, "boot": boot_id(), "namespace": namespace}


def _stat(pid: int) -> tuple[str, int, int] | None:
    """Return a process's (state letter, parent, start ticks); source: proc(5), /proc/pid/stat."""
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
    """Return the identity of a live process; None if it is dead or a zombie."""
    found = _stat(pid)
    if found is None or found[0] in "ZX":
        return None
    return ProcessId(pid, found[2], world_id())


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent; 0 if the process is gone, or its parent is not visible here."""
    found = _stat(pid)
    return 0 if found is None else found[1]


def is_alive(process: ProcessId) -> bool:
    """Return whether exactly this process still runs, not a zombie or another process with the same number."""
    found = identify(process.pid)
    return found is not None and found.start_ticks == process.start_ticks and is_here(process)


def _table() -> Iterator[tuple[int, str, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            found = _stat(int(name))
            if found is not None:
                yield int(name), found[0], found[1]


def descendants(*roots: int) -> list[int]:
    """Return the live processes below any of `roots`, children before grandchildren, without zombies."""
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
    """Return the live processes in the sessions that `leaders` began, including the leaders.

    The number of a dead leader is not reused while a member of its session lives. Source: setsid(2); proc(5), stat.
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
    """Return the live processes whose initial environment had `name` with one of the values, if we may read it."""
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
    """Send a signal; return False if the process is gone or may not be signalled (another user's, or set-user-ID)."""
    try:
        os.kill(pid, signal.Signals(number))
    except (ProcessLookupError, PermissionError):
        return False
    return True
