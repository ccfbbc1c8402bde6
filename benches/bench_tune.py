"""windlass.tune beside Ray Tune: `python benches/bench_tune.py [rounds]`.

Every engine, case and round runs in a fresh process (tune_engines.py), interleaved, so that a busy minute hits all
alike. Both sides have two CPUs. windlass runs with its defaults, journal and fsync on, and its wall times include the
start and the end of its workers; Ray's do not include `ray.init`. Ray's sweeps are shorter, for one trial of its default
takes about two seconds.

Ray is that of this interpreter, or of `.venv-dev` (`make setup`); without one, only our side is measured.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
DEV_PYTHON = HERE.parent / ".venv-dev" / "bin" / "python"
NUM_ROUNDS = 3
TIMEOUT_S = 900
OURS = ("startup", "trials", "reports", "few", "many", "most")
THEIRS = (("ray", "startup"), ("ray-reuse", "trials-ray"), ("ray", "trials-ray-default"), ("ray", "reports"))
LONG = ("many", "most")  # once is enough: they are compared with nothing but themselves

Found = dict[str, Any]


def main() -> int:
    """Print the medians and the verdicts; 1 when a budget is missed."""
    num_rounds = int(sys.argv[1]) if len(sys.argv) > 1 else NUM_ROUNDS
    python = sys.executable if importlib.util.find_spec("ray") else str(DEV_PYTHON)
    found: dict[tuple[str, str], list[Found]] = {}
    for number in range(num_rounds):
        jobs = [("windlass", case) for case in OURS if number == 0 or case not in LONG] + list(THEIRS)
        for engine, case in jobs if number % 2 == 0 else jobs[::-1]:
            result = measure(python, engine, case)
            if result is not None:
                found.setdefault((engine, case), []).append(result)
    print(
        f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
    )
    for (engine, case), results in found.items():
        line = f"{engine:<10} {case:<20}{middle(results, 'wall_s'):9.3f} s{middle(results, 'head_cpu_s'):9.3f} CPU-s"
        rates = f"{middle(results, 'trials_per_s'):10.1f} trials/s{middle(results, 'reports_per_s'):10.1f} reports/s"
        print(line + rates + f"{middle(results, 'rss_bytes') / 1e6:8.1f} MB   {len(results)} rounds")
    kept = [check(*budget) for budget in budgets(found)]  # all of them, before the first miss counts
    return int(not all(kept))


def measure(python: str, engine: str, case: str) -> Found | None:
    """One process; None when it fails, with what it said."""
    command = [python, str(HERE / "tune_engines.py"), engine, case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if not lines:
        print(f"{engine} {case}: no result: {done.stderr[-500:]}", file=sys.stderr)
        return None
    result: Found = json.loads(lines[-1].removeprefix("RESULT "))
    print(json.dumps(result), file=sys.stderr, flush=True)
    return result


def middle(results: list[Found], name: str) -> float:
    """The median of a figure over the rounds."""
    return float(median(result[name] for result in results))


Budget = tuple[str, float | None, float, bool]
"""What, its value, the bound, and whether the value must be at least that."""


def budgets(found: dict[tuple[str, str], list[Found]]) -> list[Budget]:
    """Every promise of the speed of sweeps, as a ratio within this run."""

    def of(engine: str, case: str, name: str) -> float | None:
        results = found.get((engine, case))
        return middle(results, name) if results else None

    def ratio(first: float | None, second: float | None) -> float | None:
        return first / second if first and second else None

    def first_s(engine: str) -> float | None:
        results = found.get((engine, "startup"))
        return float(median(one["stamp"] - one["began"] for one in results)) if results else None

    ours = of("windlass", "trials", "trials_per_s")
    few, many, most = (found.get(("windlass", case)) for case in ("few", "many", "most"))
    small_cpu, many_cpu = of("windlass", "few", "head_cpu_s"), of("windlass", "most", "head_cpu_s")
    per_report = ratio((many_cpu or 0) / 100_000, (small_cpu or 0) / 1_000)
    growth = (middle(most, "rss_bytes") - middle(few, "rss_bytes")) / 99_000 if few and most else None
    return [
        ("trials/s, beside Ray's default", ratio(ours, of("ray", "trials-ray-default", "trials_per_s")), 50, True),
        ("trials/s, beside Ray with reuse", ratio(ours, of("ray-reuse", "trials-ray", "trials_per_s")), 20, True),
        (
            "reports/s, beside Ray",
            ratio(of("windlass", "reports", "reports_per_s"), of("ray", "reports", "reports_per_s")),
            10,
            True,
        ),
        ("to the first statement of a trial, beside Ray", ratio(first_s("windlass"), first_s("ray")), 0.1, False),
        (
            "controller memory, beside Ray",
            ratio(of("windlass", "trials", "rss_bytes"), of("ray-reuse", "trials-ray", "rss_bytes")),
            1 / 3,
            False,
        ),
        ("CPU per report, 100,000 trials beside 1,000", per_report, 1.2, False),
        ("bytes of memory per finished trial", growth, 2000, False),
        ("resume of 10,000 trials x 10 reports, seconds", middle(many, "resume_s") if many else None, 2, False),
    ]


def check(label: str, value: float | None, bound: float, is_least: bool) -> bool:
    """Print one verdict."""
    kept = value is not None and (value >= bound if is_least else value <= bound)
    sign = ">=" if is_least else "<="
    print(
        f"{'pass' if kept else 'MISS'}  {label:<50}{value if value is not None else float('nan'):>10.4g}   budget {sign} {bound:.4g}"
    )
    return kept


if __name__ == "__main__":
    sys.exit(main())
