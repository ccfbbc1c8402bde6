"""Start commands of Ray's cluster files: windlass starts Ray itself, so they may do nothing else."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

__all__ = ["is_limit", "start_problems"]

_START = re.compile(r"ray\s+start\b")
_OURS = frozenset(
    {
        "address",
        "autoscaling-config",
        "block",
        "dashboard-host",
        "dashboard-port",
        "disable-usage-stats",
        "head",
        "node-ip-address",
        "object-manager-port",
        "port",
        "redis-address",
        "redis-port",
    }
)
"""Options of `ray start` that windlass sets itself, or that change nothing about the cluster."""


def is_limit(line: str) -> bool:
    """Return whether a command sets limits of the shell."""
    return any(part.strip().startswith("ulimit ") for part in re.split(r"&&|;", line))


def start_problems(line: str) -> Iterator[str]:
    """Yield what a start command does besides starting or stopping Ray."""
    for part in re.split(r"&&|\|\||;|\n", line.replace("\\\n", " ")):
        command = part.strip()
        if not command or command == "true" or command.startswith("ulimit ") or re.match(r"ray\s+stop\b", command):
            continue
        if not _START.match(command):
            yield f"`{command}` cannot be honoured"
            continue
        try:
            words = shlex.split(command)[2:]
        except ValueError:
            yield f"`{command}` is not a shell command"
            continue
        for word in words:
            option = word.removeprefix("--").partition("=")[0]
            if word.startswith("--") and option not in _OURS:
                yield f"`--{option}` cannot be honoured"
