"""Microseconds per call of the reporting functions, journal and threads on: `python benches/bench_report.py`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

BUDGET_US = 50.0


def _per_call_us(call: Callable[[], object], num_calls: int) -> tuple[float, float]:
    """(mean, 99.9th percentile) in microseconds; paced, as a fast training loop would be."""
    times = []
    for _ in range(num_calls):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
        time.sleep(0.0002)
    times.sort()
    return 1e6 * sum(times) / num_calls, 1e6 * times[int(num_calls * 0.999)]


def main() -> int:
    """Print the table; 1 when a mean is over its budget."""
    with tempfile.TemporaryDirectory() as folder:
        control = Path(folder, "control.json")
        control.write_text(json.dumps({"stop": False, "checkpoint": 0, "deadline": None, "reason": ""}))
        os.environ.update(WINDLASS_RUN="bench-00000000", WINDLASS_TASK="train", WINDLASS_ATTEMPT="1", WINDLASS_RANK="0")
        os.environ.update(
            WINDLASS_JOURNAL=folder + "/journal", WINDLASS_CONTROL=str(control), WINDLASS_CHECKPOINT_EVERY="3600"
        )
        from windlass import report  # reads the environment

        values = {"loss": 0.25, "lr": 1e-4, "grad_norm": 1.5}
        calls: dict[str, Callable[[], object]] = {
            "metrics": lambda: report.metrics(values, step=1),
            "progress": lambda: report.progress("step", step=1),
            "should_stop": report.should_stop,
            "should_checkpoint": report.should_checkpoint,
            "place": report.place,
        }
        worst = 0.0
        print(f"{'call':<20}{'mean us':>10}{'p99.9 us':>10}")
        for name, call in calls.items():
            mean, tail = _per_call_us(call, 5000)
            worst = max(worst, mean)
            print(f"{name:<20}{mean:>10.1f}{tail:>10.1f}")
    print(f"worst mean {worst:.1f} us, budget {BUDGET_US:g} us")
    return int(worst > BUDGET_US)


if __name__ == "__main__":
    sys.exit(main())
