"""CPU seconds of looking at a recipe, nothing trained: `python benches/bench_train_looking.py [repeats]`.

Each line is one process, from the shell and back; the median counts. Exits with 1 over the budget.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

DRY_RUN_BUDGET_S = 0.5
LINES = {
    "train olmo3-32b --dry-run": DRY_RUN_BUDGET_S,
    "train olmo3-32b --dry-run --json optim.lr=3e-4 stop=100steps": DRY_RUN_BUDGET_S,
    "train olmo3-32b --fields": DRY_RUN_BUDGET_S,
    "train --schema": DRY_RUN_BUDGET_S,
    "train --help": DRY_RUN_BUDGET_S,
    "ckpt --help": DRY_RUN_BUDGET_S,
}


def cpu_s(words: list[str]) -> float:
    """User and system seconds of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "windlass", *words], check=True, stdout=subprocess.DEVNULL, env=os.environ)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print a line for each, and whether all are within their budget."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    is_within = True
    for line, budget_s in LINES.items():
        cpu_s(line.split())  # fills the cache of bytecode and of files
        median_s = statistics.median(cpu_s(line.split()) for _ in range(repeats))
        is_within = is_within and median_s <= budget_s
        print(f"{line:<64} {median_s:.2f} CPU s of {budget_s} s", flush=True)
    return 0 if is_within else 1


if __name__ == "__main__":
    sys.exit(main())
