"""Running a program with bytes as input and output, within a time limit and an output limit."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.process import descendants, parent_of, send_signal

__all__ = ["Exchanged", "exchange"]

_PIECE_BYTES = 1 << 16
_STDERR_BYTES = 1 << 16
_REAP_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """Exit code and output of a program; standard error is truncated after 64 KiB."""

    code: int
    out: bytes
    err: str


def exchange(
    argv: Sequence[str],
    *,
    stdin: bytes | Path = b"",
    env: Mapping[str, str] | None = None,
    timeout_s: float,
    limit_bytes: int,
) -> Exchanged:
    """Run a program in a new session until it exits. Blocking.

    Background processes that it leaves behind are not waited for, even if they hold its pipes open.

    Args:
        stdin: its input, or the path of a file with the input.

    Raises:
        TimeoutError: it exceeded the time limit; it and its children were killed.
        OverflowError: it printed more than `limit_bytes`; it and its children were killed.
        OSError: it cannot be started.
    """
    with _opened(stdin) as source:
        process = subprocess.Popen(
            list(argv),
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=None if env is None else dict(env),
            start_new_session=True,
        )
    try:
        return _collected(process, time.monotonic() + timeout_s, limit_bytes)
    except BaseException:
        _kill(process)
        raise
    finally:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stderr.close()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and its session; first its children in other PID namespaces (`nsenter`), so that it reaps them.

    A namespace does not end before each of its processes is reaped, and our own parent may reap nothing.
    """
    send_signal(process.pid, signal.SIGSTOP)  # so that it starts no further child
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    inside = [pid for pid in descendants(process.pid) if parent_of(pid) == process.pid and _is_elsewhere(pid)]
    for pid in inside:
        send_signal(pid, signal.SIGKILL)
    if inside:
        send_signal(process.pid, signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_REAP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _is_elsewhere(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:  # it has ended, or is another user's
        return False


@contextlib.contextmanager
def _opened(stdin: bytes | Path) -> Iterator[int]:
    """Yield a file descriptor from which the input can be read.

    Bytes are never written to disk, since they may be secret.
    """
    if isinstance(stdin, Path):
        descriptor = os.open(stdin, os.O_RDONLY | os.O_CLOEXEC)
    else:
        descriptor = os.memfd_create("windlass-stdin")
    try:
        if not isinstance(stdin, Path):
            view = memoryview(stdin)
            while view:
                view = view[os.write(descriptor, view) :]
            os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _collected(process: subprocess.Popen[bytes], deadline: float, limit_bytes: int) -> Exchanged:
    assert process.stdout is not None
    assert process.stderr is not None
    out, err = bytearray(), bytearray()
    has_ended = False
    with selectors.DefaultSelector() as selector, open(os.pidfd_open(process.pid), "rb") as ending:
        selector.register(process.stdout, selectors.EVENT_READ, out)
        selector.register(process.stderr, selectors.EVENT_READ, err)
        selector.register(ending, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(0 if has_ended else max(0.0, deadline - time.monotonic()))
            if has_ended and not ready:
                break
            for key, _ in ready:
                if key.data is None:
                    has_ended = True
                    selector.unregister(ending)
                    continue
                piece = os.read(key.fd, _PIECE_BYTES)
                if not piece:
                    selector.unregister(key.fileobj)
                elif key.data is out or len(err) < _STDERR_BYTES:
                    key.data.extend(piece)
            if len(out) > limit_bytes:
                raise OverflowError(f"it printed more than {limit_bytes} bytes")
            if time.monotonic() >= deadline:
                raise TimeoutError
    return Exchanged(code=process.wait(), out=bytes(out), err=err[:_STDERR_BYTES].decode(errors="replace"))
