from __future__ import annotations

import mmap
import os
import signal
from pathlib import Path

from windlass.supervise.memory import proportional_bytes
from windlass.supervise.tree import resident_bytes


def test_pages_that_processes_share_are_counted_once() -> None:
    size = 32 << 20
    shared = mmap.mmap(-1, size)
    shared.write(b"x" * size)
    children = []
    ready_read, ready_write = os.pipe()
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            sum(shared[position] for position in range(0, size, mmap.PAGESIZE))
            os.write(ready_write, b"1")
            signal.pause()
            os._exit(0)
        children.append(pid)
    try:
        got = b""
        while len(got) < len(children):
            got += os.read(ready_read, 8)
        assert resident_bytes(children) >= 3 * size
        assert proportional_bytes(children) < resident_bytes(children) - size
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(ready_read)
        os.close(ready_write)


def test_a_process_that_is_gone_takes_nothing() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert not Path(f"/proc/{pid}").exists()
    assert proportional_bytes([pid]) == 0
