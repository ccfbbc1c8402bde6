"""Log of a node's agent: its standard error, whose disk may be full."""

from __future__ import annotations

import contextlib
import sys

__all__ = ["LogOnce", "write_log"]


def write_log(text: str) -> None:
    """Write a line, unless the log's disk is full: whatever else the agent does must go on."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text.rstrip("\n") + "\n")
        sys.stderr.flush()


class LogOnce:
    """Writes a problem that is met each second when it begins and when it changes."""

    def __init__(self) -> None:
        self.problem = ""

    def write(self, problem: str) -> None:
        """Keep a problem, and write it unless it is the last one; an empty text means that there is none any more."""
        if problem and problem != self.problem:
            write_log(problem)
        self.problem = problem
