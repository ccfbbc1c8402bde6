"""Journal: commits with fsync per second and their p99, and the replay of a million records.

python benches/bench_journal.py [records to replay]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from windlass.core.clock import SystemClock
from windlass.record import events
from windlass.record.frames import Record, encode
from windlass.record.journal import JournalWriter, read_journal
from windlass.record.state import fold

COMMIT_P99_BUDGET_MS = 10.0
REPLAY_BUDGET_S = 5.0


def _commit_ms(folder: Path, num_commits: int = 2000) -> list[float]:
    writer = JournalWriter(folder, "bench", SystemClock())
    times = []
    for step in range(num_commits):
        started = time.perf_counter()
        writer.append(events.CHECKPOINT, task="train", attempt=1, rank=0, path="/x", step=step, phase_s=1.0)
        times.append(1e3 * (time.perf_counter() - started))
    writer.close()
    return sorted(times)


def _write_million(folder: Path, num_records: int) -> None:
    """Eight writers; nine metrics and one progress of ten records, as a chatty training leaves behind."""
    folder.mkdir()
    for rank in range(8):
        lines = []
        for seq in range(1, num_records // 8 + 1):
            data = {"task": "train", "attempt": 1, "rank": rank, "step": seq}
            facts = {"phase": "step"} if seq % 10 == 0 else {"values": {"loss": 0.123456, "lr": 1e-4}}
            kind = events.PROGRESS if seq % 10 == 0 else events.METRICS
            lines.append(encode(Record(kind, f"train.{rank}", seq, 1.7e9 + seq, {**data, **facts})))
        Path(folder, f"train.{rank}.wj").write_bytes(b"".join(lines))


def main() -> int:
    """Print the figures; 1 when one is over its budget."""
    num_records = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory(dir=".") as root:
        times = _commit_ms(Path(root, "commits"))
        p99 = times[int(len(times) * 0.99)]
        print(
            f"commit with fsync: median {times[len(times) // 2]:.2f} ms, p99 {p99:.2f} ms (budget {COMMIT_P99_BUDGET_MS:g} ms)"
        )
        _write_million(Path(root, "replay"), num_records)
        started = time.process_time()
        facts = fold(read_journal(Path(root, "replay"), skip=(events.METRICS,)))
        replay_s = time.process_time() - started
        print(
            f"facts of a run of {num_records} records: {replay_s:.2f} CPU-s (budget {REPLAY_BUDGET_S:g} s), {len(facts.tasks)} task"
        )
        started = time.process_time()
        num_read = len(read_journal(Path(root, "replay")))
        print(f"every one of {num_read} records parsed: {time.process_time() - started:.2f} CPU-s")
    return int(p99 > COMMIT_P99_BUDGET_MS or replay_s > REPLAY_BUDGET_S)


if __name__ == "__main__":
    sys.exit(main())
