from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.system.stage import Stage
from windlass.record.state import State

pytestmark = pytest.mark.system

_WATCH_S = 3.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def test_watching_costs_next_to_nothing(stage: Stage) -> None:
    """Loose here, where other work runs; `make bench` holds the exact figure (0.005 CPU-s per second)."""
    run = stage.launch(stage.python("import time; print('here', flush=True); time.sleep(600)", nodes=2))
    stage.wait_for_line(run, "here")
    stage.wait_for_line(run, "here", rank=1)
    ours = [stage.ours(run, what, rank) for what in ("guard", "supervisor") for rank in range(2)]
    before = sum(cpu_s(pid) for pid in ours)
    began = time.monotonic()
    time.sleep(_WATCH_S)
    share = (sum(cpu_s(pid) for pid in ours) - before) / (time.monotonic() - began) / 2
    run.stop()
    assert stage.end(run) is State.STOPPED
    assert share <= 0.02, f"{share:.4f} CPU-s per second and replica"
