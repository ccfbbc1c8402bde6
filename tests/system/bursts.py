"""Kill a replica's guard, supervisor and code at one moment, and compare what was printed with what is in the log."""

from __future__ import annotations

import random
import signal
import struct
import time

from tests.system.stage import Stage, until
from windlass.core.process import send_signal

__all__ = ["PIPE_BYTES", "burst"]

PIPE_BYTES = 2 << 20
"""Most that one burst may lose: a full pipe, and as much on its way into the log."""

_PRINTER = """
import os, struct
notes = os.open("printed", os.O_RDWR | os.O_CREAT, 0o644)
number = 0
while True:
    number += 1
    os.write(1, b"line %d\\n" % number)
    os.pwrite(notes, struct.pack("<q", number), 0)
"""


def burst(stage: Stage, seed: int) -> tuple[int, int]:
    """One burst; returns the lines printed for certain before it, and those of them that are not in the log.

    Fails where a line is doubled, torn in the middle of the log, or out of order.
    """
    (stage.code / "printed").unlink(missing_ok=True)
    run = stage.launch(stage.python(_PRINTER) | {"retry": {"interrupted": 0}}, name=f"burst-{seed}")
    stage.wait_for_line(run, "line 1\n")
    time.sleep(random.Random(seed).uniform(0.0, 0.3))
    pids = [stage.ours(run, "guard"), stage.ours(run, "supervisor"), stage.user(run)]
    for pid in pids:
        send_signal(pid, signal.SIGSTOP)
    (printed,) = struct.unpack("<q", (stage.code / "printed").read_bytes())
    for pid in pids:
        send_signal(pid, signal.SIGKILL)
    stage.end(run)
    assert stage.causes(run) == ["killed"], stage.story(run)
    until(lambda: not stage.survivors(run, timeout_s=0.0), "nothing of the run lives")
    *whole, _torn = stage.log(run).split("\n")
    assert whole == [f"line {number}" for number in range(1, len(whole) + 1)]
    lost = max(0, printed - len(whole))
    assert sum(len(f"line {number}\n") for number in range(len(whole) + 1, printed + 1)) <= PIPE_BYTES
    return printed, lost
