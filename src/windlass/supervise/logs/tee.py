"""Copy of a replica's log to standard output, for backends that store standard output as the job's log.

The supervisor writes the redacted log files; this process only reads them. It is an ancestor of the guard, so that it
blocks only itself if its output is not read.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Callable, Protocol

from windlass.core.process import send_signal

__all__ = ["LogTee", "Watcher", "run_watched"]

_LOOK_EVERY_S = 0.25
_LAST_WORDS_S = 5.0
_PIECE = 1 << 16
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


class LogTee:
    """Copier for one replica's logs, which copies new content attempt by attempt, in order.

    Args:
        logs: the run's folder of logs, `<attempt>/<task>/<rank>.log` below it.
        write: receives the bytes; by default standard output.
    """

    def __init__(self, logs: Path, task: str, rank: int, write: Callable[[bytes], object] | None = None) -> None:
        self._logs, self._name = logs, f"{task}/{rank}.log"
        self._write = write or (lambda piece: os.write(1, piece))
        self._attempt, self._offset = 0, 0
        self._first = self._newest() + 1  # output of an earlier start is in the log of that start

    def look(self) -> None:
        """Copy new content."""
        for attempt in range(max(self._attempt, self._first), self._newest() + 1):
            if attempt != self._attempt:
                self._attempt, self._offset = attempt, 0
            self._copy(self._logs / str(attempt) / self._name)

    def _copy(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(self._offset)
            for piece in iter(lambda: file.read(_PIECE), b""):
                self._offset += len(piece)
                self._write_all(piece)

    def _write_all(self, piece: bytes) -> None:
        while piece:
            written = self._write(piece)
            piece = piece[written:] if isinstance(written, int) else b""

    def _newest(self) -> int:
        """Return the newest attempt for which this replica has a log; 0 if there is none."""
        with contextlib.suppress(FileNotFoundError):
            names = [name for name in os.listdir(str(self._logs)) if name.isdigit()]
            return max((int(name) for name in names if (self._logs / name / self._name).exists()), default=0)
        return 0


class Watcher(Protocol):
    """Object that `run_watched` calls at intervals while the child runs."""

    def look(self) -> None:
        """Process new content; an OSError ends the watch."""


def run_watched(watcher: Watcher, run: Callable[[], int]) -> int:
    """Run a function in a child, forward signals to it, and call the watcher meanwhile.

    Return the child's exit code.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    child = os.fork()
    if child == 0:
        code = 70
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
            code = run()
        except BaseException:
            sys.excepthook(*sys.exc_info())  # `finally` ends the process before the traceback would be printed
            raise
        finally:
            os._exit(code)
    for number in _FORWARDED:
        signal.signal(number, lambda received, _frame: send_signal(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    is_over = threading.Event()
    thread = threading.Thread(target=_follow, args=(watcher, is_over), daemon=True)
    thread.start()
    status = _wait(child)
    is_over.set()
    thread.join(_LAST_WORDS_S)
    return status


def _follow(watcher: Watcher, is_over: threading.Event) -> None:
    with contextlib.suppress(OSError):  # the output is not read; it is in the log files anyway
        while not is_over.wait(_LOOK_EVERY_S):
            watcher.look()
        watcher.look()


def _wait(child: int) -> int:
    """Return the child's exit code; also reap orphans, which a container's first process adopts."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
