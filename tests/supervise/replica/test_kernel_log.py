from __future__ import annotations

import os

from windlass.core.process import ProcessId
from windlass.supervise.replica.kernel_log import killed_in

TICKS = os.sysconf("SC_CLK_TCK")
RECORDS = (
    b"6,100,500000000,-;eth0: link up\n",
    b"3,101,600000000,-;Out of memory: Killed process 12 (python) total-vm:1kB, anon-rss:1kB\n",
    b"3,102,700000000,c;Memory cgroup out of memory: Killed process 15 (ray::IDLE) total-vm:1kB\n",
)


def process(pid: int, started_s: float) -> ProcessId:
    return ProcessId(pid, int(started_s * TICKS), "b")


def test_the_process_that_the_kernel_killed() -> None:
    assert killed_in(RECORDS, [process(11, 550), process(12, 550)]) == process(12, 550)
    assert killed_in(RECORDS, [process(15, 550)]) == process(15, 550)


def test_a_later_process_with_the_same_number_was_not_killed() -> None:
    assert killed_in(RECORDS, [process(12, 650), process(11, 1)]) is None
    assert killed_in((), [process(12, 550)]) is None
