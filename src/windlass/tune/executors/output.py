"""Where trials print: `trials/<trial>/log`, made only when something was printed.

A worker prints into a file of its own; once it holds something, it is renamed to the trial's log, and printing goes on
into the same file. So a trial that prints nothing costs one fstat per report.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Output", "claim_all", "log_names", "log_path", "remove_pending"]

DEFAULT_NAME = "log"


def log_names(log_to_file: object) -> tuple[str, str]:
    """File names for standard output and error, from `RunConfig(log_to_file=)`: True, a name, or two."""
    if isinstance(log_to_file, str) and log_to_file:
        return log_to_file, log_to_file
    if isinstance(log_to_file, Sequence) and log_to_file:
        return str(log_to_file[0]), str(log_to_file[-1])
    return ("stdout", "stderr") if log_to_file else (DEFAULT_NAME, DEFAULT_NAME)


def log_path(folder: str, trial: str, name: str) -> str:
    """A trial's log."""
    return os.path.join(folder, "trials", trial, name)


def _pending_path(folder: str, slot: str, name: str) -> str:
    return os.path.join(folder, "spools", f"{slot}.{name.replace('/', '-')}.out")


class _Stream:
    """One file that is printed into, by one or two descriptors."""

    def __init__(self, folder: str, slot: str, name: str, descriptors: Sequence[int]) -> None:
        self._folder, self._name, self._descriptors = folder, name, descriptors
        self._pending = _pending_path(folder, slot, name)
        self._file = -1
        self._is_placed = False
        self._print_to(self._pending)

    def began(self, trial: str, attempt: int) -> None:
        path = log_path(self._folder, trial, self._name)
        self._is_placed = attempt > 1 and os.path.exists(path)
        if self._is_placed:
            self._print_to(path)

    def look(self, trial: str) -> None:
        if not self._is_placed and os.fstat(self._file).st_size:
            _claim(self._pending, log_path(self._folder, trial, self._name))
            self._is_placed = True

    def ended(self, trial: str) -> None:
        self.look(trial)
        if self._is_placed:
            self._print_to(self._pending)

    def close(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            if not os.stat(self._pending).st_size:
                os.unlink(self._pending)

    def _print_to(self, path: str) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        for descriptor in self._descriptors:
            os.dup2(file, descriptor)
        if self._file >= 0:
            os.close(self._file)
        self._file = file


class Output:
    """The standard output and error of a worker.

    Args:
        folder: the sweep's.
        names: of the files for standard output and error; one file where they are the same.
    """

    def __init__(self, folder: str, slot: str, names: tuple[str, str] = (DEFAULT_NAME, DEFAULT_NAME)) -> None:
        os.makedirs(os.path.join(folder, "spools"), exist_ok=True)
        parts = [(names[0], (1, 2))] if names[0] == names[1] else [(names[0], (1,)), (names[1], (2,))]
        self._streams = [_Stream(folder, slot, name, descriptors) for name, descriptors in parts]
        self._trial = ""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(line_buffering=True, errors="backslashreplace")

    def began(self, trial: str, attempt: int) -> None:
        """What is printed from now on belongs to this trial."""
        self._trial = trial
        for stream in self._streams:
            stream.began(trial, attempt)

    def told(self) -> None:
        """The trial has reported: let what it printed be seen."""
        sys.stdout.flush()
        for stream in self._streams:
            stream.look(self._trial)

    def ended(self) -> None:
        """The trial is over."""
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in self._streams:
            stream.ended(self._trial)

    def close(self) -> None:
        """The worker is done."""
        for stream in self._streams:
            stream.close()


def _claim(pending: str, log: str) -> None:
    """Make what a worker printed the log of a trial, or the end of its log where there is one."""
    target = Path(log)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        os.rename(pending, target)
        return
    with open(pending, "rb") as source, target.open("ab") as file:
        shutil.copyfileobj(source, file)
    os.unlink(pending)


def claim_all(folder: str, slot: str, trial: str, names: tuple[str, str]) -> None:
    """What a dead worker printed last belongs to this trial."""
    for name in dict.fromkeys(names):
        pending = _pending_path(folder, slot, name)
        if os.path.exists(pending) and os.path.getsize(pending):
            _claim(pending, log_path(folder, trial, name))
    remove_pending(folder, slot, names)


def remove_pending(folder: str, slot: str, names: tuple[str, str]) -> None:
    """Remove a dead worker's own files."""
    for name in dict.fromkeys(names):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_pending_path(folder, slot, name))
