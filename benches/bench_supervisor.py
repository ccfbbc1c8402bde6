"""CPU seconds that guard and supervisor cost per second of the user's process: `python benches/bench_supervisor.py`.

Three jobs: one replica that is silent, one that reports and prints ten times a second, and a gang of four.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from windlass import Options, Run, launch
from windlass.launcher.prepare import prepare_file
from windlass.runs.home import Home

BUDGET = 0.005
WATCH_S = 20.0

_SILENT = "import time; time.sleep(600)"
_BUSY = """
import time
from windlass import report
for step in range(10**9):
    report.metrics({"loss": 1.0}, step=step)
    print("step", step, flush=True)
    time.sleep(0.1)
"""


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ours(run: Run, nodes: int) -> list[int]:
    """Guards and supervisors, once the whole gang runs."""
    folder = run.folder.jobs / "main-1"
    while True:
        attempts = run.facts.task("main").attempts
        if attempts and sum(bool(replica.process) for replica in attempts[1].replicas.values()) == nodes:
            break
        time.sleep(0.05)
    written = [json.loads((folder / f"guard-{rank}.json").read_bytes()) for rank in range(nodes)]
    return [int(text.partition(":")[0]) for entry in written for text in entry.values()]


def _share(home: Home, folder: Path, text: str, nodes: int) -> float:
    (folder / "user.py").write_text(text)
    spec = {"name": "cost", "tasks": {"main": {"run": [sys.executable, "user.py"], "nodes": nodes}}}
    (folder / "cost.yaml").write_text(json.dumps(spec))
    run = launch(prepare_file(folder / "cost.yaml", options=Options(allow_dirty=True), home=home))
    try:
        pids = _ours(run, nodes)
        time.sleep(1.0)  # the start-up is not what is measured
        before, began = sum(map(_cpu_s, pids)), time.monotonic()
        time.sleep(WATCH_S)
        return (sum(map(_cpu_s, pids)) - before) / (time.monotonic() - began) / nodes
    finally:
        run.stop(now=True)


def main() -> int:
    """Print the table; 1 when a share is over its budget."""
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        home, folder = Home(Path(name, "home")), Path(name, "code")
        folder.mkdir()
        print("CPU-s per second and replica")
        for label, text, nodes in (
            ("silent", _SILENT, 1),
            ("10 reports and lines/s", _BUSY, 1),
            ("gang of 4", _SILENT, 4),
        ):
            share = _share(home, folder, text, nodes)
            worst = max(worst, share)
            print(f"{label:<24}{share:>8.4f}", flush=True)
    print(f"worst {worst:.4f}, budget {BUDGET:g}")
    return int(worst > BUDGET)


if __name__ == "__main__":
    sys.exit(main())
