"""From the command to the user's first statement on Slurm: `python benches/bench_slurm_start.py [rounds]`.

`windlass launch --on lab --detach` beside plain `sbatch` of a script with `srun`, the same user command, the same
nodes, interleaved; one round is thrown away. windlass runs with its defaults: a commit is pinned and checked out,
journal and fsync are on, and nothing is warm but the files it keeps.

Slurm starts batch jobs at one moment of its second (SchedulerParameters of the lab; by default it is one of three
seconds), so every contestant begins once in every part of a second: the wait is the same for all of them, on average.

`first` is the first statement of the first rank, `all` that of the last, `client` the end of the command itself;
seconds since the command was started, means over the rounds.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass
from statistics import mean, median

from slurm_site import SITE, Bench, Verdicts, bench, head, until

BUDGET_RATIO, BUDGET_EXTRA_S = 1.10, 0.6
NODES = (1, 4)
NUM_ROUNDS = 12
WHO = ("sbatch + srun", "windlass launch")

JOB = """import os, sys, time
now = time.time()
path = sys.argv[1] + "." + os.environ["SLURM_PROCID"]
open(path + ".new", "w").write(repr(now))
os.rename(path + ".new", path)
"""
SCRIPT = "#!/bin/sh\nsrun {python} job.py {stamp}\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Seconds from the start of a command."""

    first: float
    all: float
    client: float


def main() -> int:
    """Print the tables and the budgets; 1 when one is missed."""
    num_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_ROUNDS
    with bench("start") as place:
        stamps = place.folder / "stamps"
        script = SCRIPT.format(python=sys.executable, stamp=stamps / "s")
        spec = {"run": [sys.executable, "job.py", str(stamps / "s")], "cpus": 1, "memory": "500MiB"}
        tasks = {
            f"{num}.yaml": json.dumps({"name": f"on{num}", "tasks": {"t": {**spec, "nodes": num}}}) for num in NODES
        }
        place.commit({"job.py": JOB, "job.sh": script, **tasks})
        found: dict[tuple[str, int], list[Start]] = {}
        for turn in range(num_rounds + 1):
            for num in NODES:
                for who, argv in _contestants(num).items():
                    start = _measure(place, argv, num, turn / num_rounds)
                    if turn:
                        found.setdefault((who, num), []).append(start)
        print(head(place.lab))
    return _report(found, num_rounds)


def _contestants(num: int) -> dict[str, list[str]]:
    shape = [f"--nodes={num}", "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=500M", "--output=/dev/null"]
    plain = ["sbatch", "--parsable", *shape, "job.sh"]
    return dict(zip(WHO, (plain, ["windlass", "launch", f"{num}.yaml", "--on", SITE, "--detach"]), strict=True))


def _measure(place: Bench, argv: list[str], num: int, phase: float) -> Start:
    stamps = place.folder / "stamps"
    stamps.mkdir(exist_ok=True)
    for old in stamps.iterdir():
        old.unlink()
    place.wait_until_idle()
    time.sleep((phase - time.time()) % 1.0)
    began = time.time()
    place.call(*argv)
    client = time.time() - began
    until(lambda: len(list(stamps.glob("s.?"))) == num, f"{' '.join(argv)} runs on {num} nodes", 60)
    at = sorted(float(path.read_text()) - began for path in stamps.iterdir())
    return Start(first=at[0], all=at[-1], client=client)


def _report(found: dict[tuple[str, int], list[Start]], num_rounds: int) -> int:
    print(f"means of {num_rounds} interleaved rounds, the median of `all`, and its range\n")
    columns = ("first", "all", "client")
    print(f"{'seconds':<18}{'nodes':>6}" + "".join(f"{name:>9}" for name in (*columns, "median", "least", "most")))
    for (who, num), starts in found.items():
        values = [mean(getattr(start, name) for start in starts) for name in columns]
        values += [pick([start.all for start in starts]) for pick in (median, min, max)]
        print(f"{who:<18}{num:>6}" + "".join(f"{value:>9.3f}" for value in values))
    print()
    verdicts = Verdicts()
    for num in NODES:
        for pick in (mean, median):
            plain, ours = (pick([start.all for start in found[who, num]]) for who in WHO)
            label = f"first statement on {num} node{'s' * (num > 1)}, {pick.__name__} ({ours / plain:.2f} x plain)"
            verdicts.check(label, ours, BUDGET_RATIO * plain + BUDGET_EXTRA_S, " s")
    return int(verdicts.num_missed > 0)


if __name__ == "__main__":
    sys.exit(main())
