"""What processes take of memory when pages that they share are shared out among them."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.supervise.tree import resident_bytes

__all__ = ["proportional_bytes"]


def proportional_bytes(pids: Iterable[int]) -> int:
    """Memory that processes hold in RAM, a page of n processes counted as 1/n each; slow for big processes.

    Where the kernel does not tell, what the process holds counts whole. Source: proc(5), smaps_rollup.
    """
    return sum(_proportional_bytes(pid) for pid in pids)


def _proportional_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            lines = file.read().splitlines()
    except ProcessLookupError:
        return 0
    except OSError:
        return resident_bytes([pid])
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Pss:")), 0)
