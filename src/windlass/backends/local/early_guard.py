"""Guard that is started before its job is known, so that its imports run while the client plans.

It waits on a pipe. When it receives a job it becomes that job's guard; when the client exits without sending one, it
exits too and nothing has happened. It starts the user's program about 0.1 s sooner and makes no decisions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["guard_environment", "start_early_guard", "use_early_guard"]

_waiting: list[subprocess.Popen[bytes]] = []


def guard_environment() -> dict[str, str]:
    """Return the variables that a guard inherits: all of this process's variables except secrets."""
    return {name: value for name, value in os.environ.items() if not name.startswith("WINDLASS_SECRET_")}


def start_early_guard(archive: Path) -> None:
    """Start a guard that waits for its job; at most one per process."""
    if not _waiting:
        argv = (sys.executable, "-I", "-S", str(archive), "wait")
        _waiting.append(
            subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=guard_environment(),
            )
        )


def use_early_guard(argv: tuple[str, ...]) -> subprocess.Popen[bytes] | None:
    """Let the waiting guard run the job in `argv`, and return it; None if no guard of the same program waits.

    The job is handed over in one write of less than a pipe's atomic size: the guard receives all of it or nothing.
    """
    if not _waiting:
        return None
    process = _waiting.pop()
    assert process.stdin is not None
    is_same = list(argv[:4]) == list(process.args[:4]) if isinstance(process.args, tuple) else False
    try:
        if is_same and process.poll() is None:
            process.stdin.write(json.dumps(argv[4:]).encode() + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        return None
    return process if is_same and process.poll() is None else None
