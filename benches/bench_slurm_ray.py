"""How soon a Ray of four nodes is there for the user's program: `python benches/bench_slurm_ray.py [rounds]`.

`cluster: ray` beside what is written by hand, `ray start --head` and, when that returns, `srun ... ray start --address`
(without the sleeps of the usual scripts), and beside `ray symmetric-run`. The same Ray, the same options, the same
driver, interleaved; one round is thrown away. Seconds from the start of the batch script to the moment when the driver
has counted all nodes.

Ray is that of this interpreter, or of `.venv-dev` (`make setup`).
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from statistics import mean, median

from slurm_site import REPO, SITE, Bench, Options, Verdicts, bench, head, until

BUDGET_RATIO, BUDGET_EXTRA_S = 1.1, 1.0
NUM_NODES, NUM_CPUS = 4, 2
NUM_ROUNDS = 5
WHO = ("by hand", "symmetric-run", "cluster: ray")

DRIVER = """import os, sys, time, ray
ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(0.02)
now = time.time()
open(sys.argv[1] + ".new", "w").write(repr(now))
os.rename(sys.argv[1] + ".new", sys.argv[1])
"""
_OPTIONS = f"--num-cpus={NUM_CPUS} --num-gpus=0 --disable-usage-stats"
_BEGIN = """#!/bin/sh
export PATH={bin}:$PATH RAY_USAGE_STATS_ENABLED=0
ip=$(hostname -I | cut -d" " -f1)
"""
BY_HAND = (
    _BEGIN
    + f"""ray start --head --node-ip-address=$ip --port=6379 --include-dashboard=false {_OPTIONS}
srun --nodes={NUM_NODES - 1} --ntasks={NUM_NODES - 1} --exclude=$(hostname) --overlap \\
  ray start --address=$ip:6379 {_OPTIONS} --block &
python driver.py {{stamp}} {NUM_NODES}
"""
)
SYMMETRIC = (
    _BEGIN
    + f"""srun --nodes={NUM_NODES} --ntasks-per-node=1 ray symmetric-run --address=$ip:6379 --min-nodes {NUM_NODES} \\
  {_OPTIONS} -- python driver.py {{stamp}} {NUM_NODES}
"""
)


def main() -> int:
    """Print the table and the budgets; 1 when one is missed."""
    num_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_ROUNDS
    programs = _folder_of_ray()
    with bench("ray", Options(has_login=False, own=("/tmp", "/dev/shm"))) as place:
        _write(place, programs)
        found: dict[str, list[float]] = {who: [] for who in WHO}
        for turn in range(num_rounds + 1):
            for who in WHO:
                took_s = _measure(place, who)
                if turn:
                    found[who].append(took_s)
        print(head(place.lab))
    return _report(found, num_rounds)


def _folder_of_ray() -> Path:
    if importlib.util.find_spec("ray") is not None:
        return Path(sys.executable).parent
    folder: Path = REPO / ".venv-dev" / "bin"
    if (folder / "ray").exists():
        return folder
    raise SystemExit("FAIL: this bench needs Ray: run `make setup`")


def _write(place: Bench, programs: Path) -> None:
    stamp = str(place.folder / "stamp")
    task = {
        "run": [str(programs / "python"), "driver.py", stamp, str(NUM_NODES)],
        "nodes": NUM_NODES,
        "cpus": NUM_CPUS,
        "cluster": "ray",
    }
    env = {"vars": {"PATH": f"{programs}:/usr/bin:/bin"}}
    files = {"ray.yaml": json.dumps({"name": "ray", "tasks": {"t": task}, "env": env}), "driver.py": DRIVER}
    files |= {"hand.sh": BY_HAND.format(bin=programs, stamp=stamp)}
    place.commit(files | {"symmetric.sh": SYMMETRIC.format(bin=programs, stamp=stamp)})


def _measure(place: Bench, who: str) -> float:
    stamp, output = place.folder / "stamp", place.folder / "output.txt"
    for path in (stamp, output):
        path.unlink(missing_ok=True)
    place.lab.heal()  # with Ray's daemons, which a job's end leaves alive in this Slurm
    if who == "cluster: ray":
        place.windlass("launch", "ray.yaml", "--on", SITE, "--detach")
    else:
        shape = [f"--nodes={NUM_NODES}", "--ntasks-per-node=1", f"--cpus-per-task={NUM_CPUS}", f"--output={output}"]
        place.call("sbatch", "--parsable", *shape, "hand.sh" if who == "by hand" else "symmetric.sh")
    until(stamp.exists, f"all nodes are counted ({who}: {place.folder})", 180)
    if who == "cluster: ray":
        (output,) = max((place.home / "runs").glob("ray-*"), key=_born).glob("jobs/t-1/slurm-*.out")
    return float(stamp.read_text()) - _born(output)


def _born(path: Path) -> float:
    """When a file was made; Slurm makes a job's output file just before it starts the batch script."""
    done = subprocess.run(["stat", "--format=%.6W", str(path)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def _report(found: dict[str, list[float]], num_rounds: int) -> int:
    print(f"seconds from the start of the job until the driver has counted {NUM_NODES} nodes, {num_rounds} rounds\n")
    print(f"{'':<18}{'median':>9}{'mean':>9}{'least':>9}{'most':>9}")
    for who, values in found.items():
        print(f"{who:<18}" + "".join(f"{pick(values):>9.2f}" for pick in (median, mean, min, max)))
    print()
    by_hand, symmetric, ours = (median(found[who]) for who in WHO)
    verdicts = Verdicts()
    label = f"beside `ray start` by hand ({ours / by_hand:.2f} x)"
    verdicts.check(label, ours, BUDGET_RATIO * by_hand + BUDGET_EXTRA_S, " s")
    verdicts.check(f"beside `ray symmetric-run` ({ours / symmetric:.2f} x)", ours, symmetric, " s")
    return int(verdicts.num_missed > 0)


if __name__ == "__main__":
    sys.exit(main())
