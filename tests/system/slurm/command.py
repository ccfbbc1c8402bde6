"""The command line as a person types it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Answer", "windlass"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one command line gave."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit {self.code}\n{self.out}\n{self.err}"


def windlass(
    *argv: str, cwd: Path | None = None, timeout_s: float = 60.0, env: Mapping[str, str] | None = None
) -> Answer:
    """Run the installed program to its end.

    Args:
        env: more variables.
    """
    done = subprocess.run(
        [str(Path(sys.executable).with_name("windlass")), *argv],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "200", **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
    )
    return Answer(code=done.returncode, out=done.stdout, err=done.stderr)
