"""Process tree below the user's process: found by descent and by token, and killed completely."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from typing import Callable

from windlass.core.process import ProcessId, descendants, find_by_environment, send_signal, session_members

__all__ = ["below", "end_all", "resident_bytes", "sweep"]

_PAUSE_S = 0.01
_NUM_EMPTY_LOOKS = 2
_MAX_LOOKS = 100
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def end_all(
    roots: Iterable[int],
    keep: Callable[[], set[int]],
    *,
    is_empty: Callable[[], bool] = lambda: False,
    deadline_s: float = 10.0,
) -> list[int]:
    """Send SIGKILL to all descendants of `roots` until none is left; return those that did not die in time.

    A process whose parent dies while the process table is read can be missed, so only two empty scans in a row count.

    Args:
        roots: subreapers, which are not killed: all forked processes stay below them, even after setsid and a double fork.
        keep: processes (with their descendants) that are not the user's.
        is_empty: returns whether it is certain that nothing is left. It saves reading the process table, which takes
            tens of milliseconds on a machine with thousands of processes.
    """
    roots = list(roots)
    end = time.monotonic() + deadline_s
    num_empty = 0
    left: list[int] = []
    while num_empty < _NUM_EMPTY_LOOKS and time.monotonic() < end:
        if is_empty():
            return []
        kept = keep()
        left = below(roots, kept)
        num_empty = 0 if left else num_empty + 1
        for pid in left:
            send_signal(pid, signal.SIGKILL)
        if left:
            time.sleep(_PAUSE_S)
    return left


def below(roots: Iterable[int], kept: set[int]) -> list[int]:
    """Return the descendants of `roots`, except other roots, kept processes, and descendants of kept ones."""
    roots = list(roots)
    found = dict.fromkeys(descendants(*roots))
    spared = {*roots, *kept}
    below_kept = kept.intersection(found)  # a kept process may also be an ancestor of the roots
    if below_kept:
        spared.update(descendants(*below_kept))
    return [pid for pid in found if pid not in spared]


def sweep(token_name: str, tokens: Iterable[str], keep: set[int], *, roots: Iterable[str] = ()) -> list[int]:
    """Kill what earlier supervisors left behind on this machine.

    Processes are identified by a token in their initial environment, by the session that each recorded process began (for
    those that cleared their environment), and by descent from these.

    Args:
        tokens: tokens of one replica or of many: the process table is read once for all.
        roots: recorded identities of user processes (`process-started`).
    """
    sessions = [ProcessId.parse(root) for root in roots if root]
    wanted = tuple(tokens)
    ended: list[int] = []
    for _ in range(_MAX_LOOKS):
        known = [*find_by_environment(token_name, *wanted), *session_members(*sessions)]
        family = dict.fromkeys([*known, *(descendants(*known) if known else ())])
        found = [pid for pid in family if pid not in keep]
        if not found:
            break
        for pid in found:
            send_signal(pid, signal.SIGKILL)
        ended.extend(pid for pid in found if pid not in ended)
        time.sleep(_PAUSE_S)
    return ended


def resident_bytes(pids: Iterable[int]) -> int:
    """Return the RAM that processes use, counting a shared page once per process; source: proc(5), statm."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/statm", "rb") as file:
                total += int(file.read().split()[1]) * _PAGE_BYTES
        except (FileNotFoundError, ProcessLookupError, IndexError):
            continue
    return total
