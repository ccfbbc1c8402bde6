"""Entry of the zipapp: `windlass.pyz guard JOB_FOLDER RANK`, or `wait` to be told that on standard input."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

from windlass.supervise.guard import guard

__all__ = ["main"]

_GC_THRESHOLD = 10_000
"""A start makes many objects and drops few: looking through them every 700 would delay user code by some ms."""


def main(arguments: list[str]) -> int:
    """Run the guard of one replica in this process; blocks until the replica is not needed any more."""
    gc.set_threshold(_GC_THRESHOLD)
    if arguments == ["wait"]:
        arguments = _wait_to_be_told()
        if not arguments:
            return 0
    if len(arguments) != 3 or arguments[0] != "guard":
        return 2
    folder, rank = Path(arguments[1]), int(arguments[2])

    def supervise(held: object) -> int:
        from windlass.supervise.supervisor import supervise as run  # lazy: the guard stays small

        return run(folder, rank, held)  # type: ignore[arg-type]

    return guard(folder, rank, supervise)


def _wait_to_be_told() -> list[str]:
    """Import what a replica needs while the client still plans; an empty list when the client left without a word."""
    import windlass.supervise.supervisor  # noqa: F401 - lazy: a guard that need not wait stays small

    told = b""
    while not told.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            return []
        told += piece
    arguments: list[str] = json.loads(told)
    output = os.open(os.path.join(arguments[1], "guard.out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(old, new)
    os.close(nothing)
    os.close(output)
    return arguments
