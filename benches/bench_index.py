"""`ps` over 10,000 runs: the first build of the index, and the next look. `python benches/bench_index.py [runs]`."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from windlass.record import events
from windlass.record.frames import Record, encode
from windlass.runs.home import Home
from windlass.runs.index import Index

PS_BUDGET_S = 0.3
_DAY_S = 86_400.0


def _write_run(home: Home, number: int, *, is_running: bool, at: float) -> None:
    """A run's folder with two writers, twelve records, and the times of yesterday."""
    run_id, tasks = (
        f"exp{number % 50}-{number:08d}",
        {"train": {"after": [], "replicas": 1, "interrupted": 50, "failed": 0}},
    )
    journal = home.runs / run_id / "journal"
    journal.mkdir(parents=True)
    (journal.parent / "plan.json").write_text("{}")
    created: dict[str, object] = {
        "run": run_id,
        "name": run_id[:-9],
        "why": "bench",
        "plan_hash": "0" * 64,
        "tasks": tasks,
    }
    intended: dict[str, object] = {
        "task": "train",
        "job": 1,
        "token": "t",
        "backend": "local",
        "resets_budgets": False,
        "from_attempt": 1,
    }
    ended: dict[str, object] = {
        "task": "train",
        "job": 1,
        "attempt": 1,
        "verdict": "succeeded",
        "cause": "ok",
        "message": "",
    }
    started: dict[str, object] = {
        "task": "train",
        "job": 1,
        "attempt": 1,
        "epoch": 1,
        "leader": "n0",
        "address": "127.0.0.1",
        "port": 1,
    }
    saves: list[dict[str, object]] = [
        {"task": "train", "attempt": 1, "rank": 0, "path": f"step-{k}", "step": k, "phase_s": 1.0} for k in range(8)
    ]
    client: list[tuple[str, dict[str, object]]] = [(events.RUN_CREATED, created), (events.JOB_INTENDED, intended)]
    job: list[tuple[str, dict[str, object]]] = [
        (events.ATTEMPT_STARTED, started),
        *((events.CHECKPOINT, save) for save in saves),
    ]
    job += [] if is_running else [(events.TASK_ENDED, ended)]
    for writer, records in (("client-1", client), ("train.0", job)):
        lines = [encode(Record(kind, writer, seq, at + seq, data)) for seq, (kind, data) in enumerate(records, 1)]
        (journal / f"{writer}.wj").write_bytes(b"".join(lines))
        os.utime(journal / f"{writer}.wj", (at, at))


def _look(home: Home, folder: Path, num_rows: int) -> tuple[float, float, int]:
    """(wall seconds, CPU seconds, runs read) of what `ps` does in a fresh process's place."""
    wall, cpu = time.perf_counter(), time.process_time()
    index = Index(home, folder=folder)
    num_read = index.refresh()
    index.rows(limit=num_rows)
    index.close()
    return time.perf_counter() - wall, time.process_time() - cpu, num_read


def main() -> int:
    """Print the figures; 1 when the next look is over its budget."""
    num_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as root:
        home, cache = Home(Path(root, "home")), Path(root, "cache")
        for number in range(num_runs):
            _write_run(home, number, is_running=number % 100 == 0, at=time.time() - _DAY_S)
        for label, num_rows in (("built", 20), ("next look, newest 20", 20), ("next look, every row", 0)):
            wall, cpu, num_read = _look(home, cache, num_rows)
            print(f"{label:<22}{wall:>8.3f} s wall {cpu:>8.3f} CPU-s   {num_read} of {num_runs} runs read")
            is_over = label != "built" and wall > PS_BUDGET_S * max(1.0, num_runs / 10_000)
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main())
