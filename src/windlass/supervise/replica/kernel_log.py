"""Search of the kernel log for processes that were killed for lack of memory.

Source: the kernel's Documentation/ABI/testing/dev-kmsg; mm/oom_kill.c, "Killed process %d (%s)".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from windlass.core.process import ProcessId

__all__ = ["killed_for_memory", "killed_in"]

_LOG = "/dev/kmsg"
_FIRST_NAMESPACE = "pid:[4026531836]"
"""Initial PID namespace of the machine (include/uapi/linux/nsfs.h), whose pids are in the kernel log."""

_RECORD = re.compile(rb"[0-9]+,[0-9]+,([0-9]+),[^;]*;.*Killed process ([0-9]+) ")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def killed_for_memory(processes: Iterable[ProcessId]) -> ProcessId | None:
    """Return the first process that the kernel killed for lack of memory; None if the log is unreadable."""
    if os.readlink("/proc/self/ns/pid") != _FIRST_NAMESPACE:
        return None
    try:
        descriptor = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return killed_in(_records(descriptor), processes)
    finally:
        os.close(descriptor)


def _records(descriptor: int) -> Iterable[bytes]:
    while True:
        try:
            yield os.read(descriptor, 8192)
        except BlockingIOError:
            return
        except BrokenPipeError:  # overwritten while it was read: the next read continues with the oldest record
            continue
        except OSError:
            return


def killed_in(records: Iterable[bytes], processes: Iterable[ProcessId]) -> ProcessId | None:
    """Return the first process that the log's records name as killed.

    A kill before the process began affected another process with the same pid.
    """
    known = {process.pid: process for process in processes}
    for record in records:
        found = _RECORD.match(record)
        process = known.get(int(found[2])) if found is not None else None
        if found is not None and process is not None and int(found[1]) / 1e6 >= process.start_ticks / _TICKS_PER_S - 1:
            return process
    return None
