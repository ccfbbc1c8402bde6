"""Hand-over of a chain on Slurm beside `scontrol requeue`: `python benches/bench_slurm_handover.py [links]`.

The same program, in the same Slurm and at the same time, as a chain of windlass (`per_job: 10s`, each link stopped as
before a walltime) and as a plain job that is requeued once by hand. Slurm's default for what holds a requeued job back
is kept, 120 s (`cred_expire`), where the system tests make it shorter.

A hand-over is the time from the last statement of one life of the program to the first of the next.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from slurm_site import SITE, Bench, Options, Verdicts, bench, head, until

BUDGET_RATIO = 0.1
NUM_LINKS = 11
PER_JOB_S = 10
SLURMS_DEFAULT_S = 120

# Saves 20 times a second, and for the last time when it is told to go.
JOB = """import os, signal, sys, time
def stop(*_):
    raise SystemExit(75)
signal.signal(signal.SIGTERM, stop)
file = open(f"{sys.argv[1]}/{time.time_ns()}", "w", buffering=1)
try:
    for step in range(20 * 600):
        print(repr(time.time()), file=file)
        if "WINDLASS_CHECKPOINTS" in os.environ and step == 20:
            open(os.environ["WINDLASS_CHECKPOINTS"] + f"/step-{time.time_ns()}", "w").write("saved")
        time.sleep(0.05)
finally:
    print(repr(time.time()), file=file)
"""
SCRIPT = "#!/bin/sh\nexec srun {python} job.py {lives}\n"


def main() -> int:
    """Print both and the budget; 1 when it is missed."""
    num_links = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_LINKS
    with bench("handover", Options(has_login=False, requeue_delay_s=SLURMS_DEFAULT_S)) as place:
        plain, ours = (place.folder / name for name in ("plain", "ours"))
        for lives in (plain, ours):
            lives.mkdir()
        task = {"run": [sys.executable, "job.py", str(ours)], "cpus": 1, "checkpoints": {"pattern": "step-*"}}
        limit = {"time": f"{PER_JOB_S * (num_links + 3)}s", "per_job": f"{PER_JOB_S}s"}
        spec = {"name": "chain", "tasks": {"t": task}, "limit": limit}
        script = SCRIPT.format(python=sys.executable, lives=plain)
        place.commit({"job.py": JOB, "job.sh": script, "chain.yaml": json.dumps(spec)})
        _play(place, num_links)
        print(head(place.lab))
        found = {"scontrol requeue": _gaps(plain), "windlass chain": _gaps(ours)}
    return _report(found)


def _play(place: Bench, num_links: int) -> None:
    shape = ["--nodes=1", "--cpus-per-task=1", "--mem=500M", "--time=30", "--requeue", "--output=/dev/null"]
    job = place.call("sbatch", "--parsable", *shape, "job.sh")
    place.windlass("launch", "chain.yaml", "--on", SITE, "--detach")
    plain, ours = place.folder / "plain", place.folder / "ours"
    until(lambda: list(plain.iterdir()), "the plain job runs", 60)
    time.sleep(5)
    place.call("scontrol", "requeue", job)
    until(lambda: len(list(plain.iterdir())) == 2, "the plain job runs again", SLURMS_DEFAULT_S + 120)
    until(lambda: len(list(ours.iterdir())) >= num_links, f"link {num_links} runs", 30 * num_links)
    place.call("scancel", "--user=root")
    place.wait_until_idle()


def _gaps(lives: Path) -> list[float]:
    """Seconds between each life's last statement and the next one's first."""
    paths = sorted(lives.iterdir())
    times = [[float(line) for line in path.read_text().splitlines()] for path in paths]
    return [after[0] - before[-1] for before, after in pairwise(times)]


def _report(found: dict[str, list[float]]) -> int:
    print(f"\n{'hand-over, seconds':<22}{'number':>8}{'median':>9}{'least':>9}{'most':>9}")
    for who, gaps in found.items():
        print(f"{who:<22}{len(gaps):>8}" + "".join(f"{pick(gaps):>9.2f}" for pick in (median, min, max)))
    print()
    verdicts = Verdicts()
    theirs, ours = (median(gaps) for gaps in found.values())
    verdicts.check("hand-over, ratio to `scontrol requeue`", ours / theirs, BUDGET_RATIO)
    return int(verdicts.num_missed > 0)


if __name__ == "__main__":
    sys.exit(main())
