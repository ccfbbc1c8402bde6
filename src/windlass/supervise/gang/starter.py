"""Starter for a gang's replicas on one machine: a process that has imported everything forks a guard for each.

A new interpreter with all imports takes 0.1 s of CPU time and 15 MiB for each replica; a fork of a prepared process
takes about 1 ms and shares its memory.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Callable

from windlass.core.json_text import read_json
from windlass.supervise.fencing.guard_file import guard_path

if TYPE_CHECKING:
    import subprocess

__all__ = ["Starter", "serve_starts"]

_POLL_MS = 20
_AT_ONCE_PER_CPU = 4
"""Maximum number of guards per CPU that start at the same time; more would only slow each other down."""


class Starter:
    """Leader's side: starts the forking process when a replica is first needed. Never blocks."""

    def __init__(self, job_folder: Path) -> None:
        self._folder = job_folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Return the pid of the forking process; 0 before it is started."""
        return self._process.pid if self._process is not None else 0

    def start(self, rank: int) -> str:
        """Request a guard for a replica; return why the previous process could not start one, or ""."""
        problem = self._problem()
        if self._process is None:
            self._process = self._begin()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has just ended; a later call reports why and starts another
            os.write(self._process.stdin.fileno(), b"%d\n" % rank)
        return problem

    def _problem(self) -> str:
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return ""
        self.close()
        return os.strerror(code) if code > 0 else f"ended by signal {-code}" if code else ""

    def _begin(self) -> subprocess.Popen[bytes]:
        import subprocess  # lazy: few replicas start others

        command = [sys.executable, "-I", "-S", sys.argv[0], "guards", str(self._folder)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

    def close(self) -> None:
        """End the forking process; guards that it started continue. Idempotent."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process = None


def serve_starts(job_folder: Path, run_guard: Callable[[int], int]) -> int:
    """Fork a guard for each rank read from standard input; return an errno if a fork fails.

    What the guards need must be imported already: it is then shared by all of them.
    """
    gc.collect()
    gc.freeze()  # otherwise the garbage collector of a child would touch, and so copy, every page
    most = _AT_ONCE_PER_CPU * (os.cpu_count() or 1)
    text, waiting, starting = b"", [], {}  # type: bytes, list[int], dict[int, int]
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while True:
        if poll.poll(_POLL_MS if starting else None):
            piece = os.read(0, 65536)
            if not piece:
                return 0
            *lines, text = (text + piece).split(b"\n")
            waiting.extend(rank for rank in map(int, lines) if rank not in waiting and rank not in starting)
        starting = {rank: pid for rank, pid in starting.items() if not _has_begun(job_folder, rank, pid)}
        while waiting and len(starting) < most:
            rank = waiting.pop(0)
            try:
                starting[rank] = _fork(rank, run_guard)
            except OSError as error:
                return error.errno or errno.EAGAIN


def _fork(rank: int, run_guard: Callable[[int], int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        code = run_guard(rank)
    finally:
        os._exit(code)


def _has_begun(job_folder: Path, rank: int, pid: int) -> bool:
    """Return whether a guard has started its supervisor, or is gone."""
    with contextlib.suppress(ChildProcessError):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
    try:
        written = read_json(guard_path(job_folder, rank))
    except FileNotFoundError:
        return False
    return bool(written["guard"].startswith(f"{pid}:"))
