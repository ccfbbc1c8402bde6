"""A command that is killed at its n-th call that changes the disk."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

__all__ = ["killed_at"]

_KILLER = """
import os, sys
left, calls = int(sys.argv[1]), sys.argv[2].split(",")
def deadly(call):
    def wrapped(*arguments, **more):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), 9)
        return call(*arguments, **more)
    return wrapped
for name in calls:
    setattr(os, name, deadly(getattr(os, name)))
from windlass.cli.program import main
sys.exit(main(sys.argv[3:]))
"""


def killed_at(number: int, calls: Sequence[str], *arguments: str) -> int:
    """Exit code of `windlass ARGUMENTS`, killed when it calls functions of `os` of these names for the n-th time."""
    argv = [sys.executable, "-c", _KILLER, str(number), ",".join(calls), *arguments]
    return subprocess.run(argv, capture_output=True, check=False).returncode
