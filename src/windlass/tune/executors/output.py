"""Output of trials: `trials/<trial>/log`, created when there is output.

A worker prints to its own file. Once that is not empty, it is renamed to the trial's log, and output continues in the
same file. A trial that prints nothing therefore costs one fstat per report.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

__all__ = ["Output", "log_names", "log_path", "settle_output"]

DEFAULT_NAME = "log"


def log_names(log_to_file: object) -> tuple[str, str]:
    """Return the file names for standard output and error that `RunConfig(log_to_file=)` sets with True or 1-2 names."""
    if isinstance(log_to_file, str) and log_to_file:
        return log_to_file, log_to_file
    if isinstance(log_to_file, Sequence) and log_to_file:
        return str(log_to_file[0]), str(log_to_file[-1])
    return ("stdout", "stderr") if log_to_file else (DEFAULT_NAME, DEFAULT_NAME)


def log_path(folder: str, trial: str, name: str) -> str:
    """Return the path of a trial's log."""
    return os.path.join(folder, "trials", trial, name)


def _pending_path(folder: str, slot: str, name: str) -> str:
    return os.path.join(folder, "spools", f"{slot}.{name.replace('/', '-')}.out")


class _Stream:
    """File for the output of one or two descriptors."""

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
    """Standard output and standard error of a worker.

    Args:
        folder: the sweep's folder.
        names: file names for standard output and error; one file if they are equal.
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
        """Assign all further output to this trial."""
        self._trial = trial
        for stream in self._streams:
            stream.began(trial, attempt)

    def on_report(self) -> None:
        """Publish the output that the trial wrote before its report."""
        sys.stdout.flush()
        for stream in self._streams:
            stream.look(self._trial)

    def ended(self) -> None:
        """Publish the rest of the trial's output."""
        sys.stdout.flush()
        sys.stderr.flush()
        for stream in self._streams:
            stream.ended(self._trial)

    def close(self) -> None:
        """Remove the worker's files if they are empty."""
        for stream in self._streams:
            stream.close()


def _claim(pending: str, log: str) -> None:
    """Append a worker's output file to the trial's log, or rename it if there is no log."""
    target = Path(log)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        os.rename(pending, target)
        return
    with open(pending, "rb") as source, target.open("ab") as file:
        shutil.copyfileobj(source, file)
    os.unlink(pending)


def settle_output(folder: str, slot: str, trial: str, options: Mapping[str, Any]) -> None:
    """Append the last output of a dead worker to its trial's log, and remove its files. Idempotent.

    Args:
        trial: the trial that it ran; empty for an idle worker, whose output is dropped.
        options: options of the work: `log_to_file`.
    """
    for name in dict.fromkeys(log_names(options.get("log_to_file"))):
        pending = _pending_path(folder, slot, name)
        if trial and os.path.exists(pending) and os.path.getsize(pending):
            _claim(pending, log_path(folder, trial, name))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(pending)
