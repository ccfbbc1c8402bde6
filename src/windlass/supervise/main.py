"""Entry of the zipapp: `windlass.pyz guard JOB_FOLDER RANK`."""

from __future__ import annotations

import gc
from pathlib import Path

from windlass.supervise.guard import guard

__all__ = ["main"]

_GC_THRESHOLD = 10_000
"""A start makes many objects and drops few: looking through them every 700 would delay user code by some ms."""


def main(arguments: list[str]) -> int:
    """Run the guard of one replica in this process; blocks until the replica is not needed any more."""
    if len(arguments) != 3 or arguments[0] != "guard":
        return 2
    gc.set_threshold(_GC_THRESHOLD)
    folder, rank = Path(arguments[1]), int(arguments[2])

    def supervise(held: object) -> int:
        from windlass.supervise.supervisor import supervise as run  # lazy: the guard stays small

        return run(folder, rank, held)  # type: ignore[arg-type]

    return guard(folder, rank, supervise)
