"""Targets of a SIGTERM: a program, or the children of the shell that runs a user's command line."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from windlass.core.process import descendants

__all__ = ["parent_of", "targets_of"]

_SHELL = ["/bin/sh", "-c"]


def targets_of(root: int, *, is_shell: bool) -> list[int]:
    """Return the processes that get a SIGTERM meant for `root`.

    The shell gets the signal only if it has a trap for it: without one it would die before its children. A shell that
    replaced itself with its last command no longer counts as a shell.
    """
    is_shell = is_shell and _command_line(root)[:2] == _SHELL
    targets = [pid for pid in descendants(root) if parent_of(pid) == root] if is_shell else []
    if not targets or _catches(root, signal.SIGTERM):
        targets.append(root)
    return targets


def parent_of(pid: int) -> int:
    """Return the pid of a process's parent; 0 if the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _command_line(pid: int) -> list[str]:
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal; source: proc(5), status, SigCgt."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    mask = next((line.split()[1] for line in text.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (number - 1) & 1)
