"""One measurement of one engine, in a process of its own: `python benches/tune_engines.py ENGINE CASE`, prints JSON.

A trial reports {"score": x * i} for i in range(reports), nothing else. Engines: `windlass` with its defaults (journal
and fsync on), `windlass-on-ray` (the same with its slots on Ray, which is up already), `ray` (Ray Tune as it comes),
`ray-reuse` (a class trainable with actors reused, its best setting).
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CASES = {  # trials, reports of each
    "startup": (1, 1),
    "trials": (1000, 1),
    "trials-ray": (200, 1),
    "trials-ray-default": (20, 1),
    "reports": (2, 2000),
    "many": (10_000, 10),
    "most": (100_000, 1),
    "few": (1_000, 1),
}
NUM_SLOTS = 2


def main() -> int:
    """Measure, and print one line of JSON."""
    engine, case = sys.argv[1:3]
    began = time.time()
    folder = tempfile.mkdtemp(prefix="bench-tune-", dir=os.environ.get("BENCH_FOLDER"))
    os.environ["WINDLASS_HOME"] = str(Path(folder, "home"))
    try:
        found = (with_windlass if engine.startswith("windlass") else with_ray)(engine, *CASES[case], folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print("RESULT " + json.dumps({"engine": engine, "case": case, "began": began, **found}))
    return 0


def objective(tune: Any, num_reports: int, stamp: str) -> Callable[[dict[str, Any]], None]:
    """The function trainable; the first trial notes when its first statement runs."""

    def train(config: dict[str, Any]) -> None:
        if stamp and not os.path.exists(stamp):
            Path(stamp).write_text(repr(time.time()))
        for i in range(num_reports):
            tune.report({"score": config["x"] * i})

    return train


def stepper(tune: Any, num_reports: int) -> type:
    """The class trainable, which can be reset."""

    class Steps(tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            self.x, self.i = config["x"], 0

        def step(self) -> dict[str, Any]:
            self.i += 1
            return {"score": self.x * self.i, "done": self.i >= num_reports}

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.setup(new_config)
            return True

        def save_checkpoint(self, checkpoint_dir: str) -> None:
            pass

        def load_checkpoint(self, checkpoint: Any) -> None:
            pass

    return Steps


def with_windlass(engine: str, num_trials: int, num_reports: int, folder: str) -> dict[str, Any]:
    """Our side; the wall time includes the start of workers and their end."""
    from windlass import tune

    stamp = str(Path(folder, "stamp"))
    config = tune.TuneConfig(metric="score", mode="max", num_samples=num_trials, max_concurrent_trials=NUM_SLOTS)
    if engine == "windlass-on-ray":
        import ray

        ray.init(num_cpus=NUM_SLOTS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    run = tune.RunConfig(name="bench", storage_path=folder, verbose=0)
    train = objective(tune, num_reports, stamp if num_trials == 1 else "")
    tuner = tune.Tuner(train, param_space={"x": tune.uniform(0, 1)}, tune_config=config, run_config=run)
    found = measured(tuner.fit, num_trials, num_reports)
    results = found.pop("value")
    assert results.num_terminated == num_trials, (results.num_terminated, num_trials)
    found["stamp"] = float(Path(stamp).read_text()) if num_trials == 1 else 0.0
    found["journal_bytes"] = Path(folder, "bench", "journal", "head.wj").stat().st_size
    found["files"] = sum(len(names) for _, _, names in os.walk(Path(folder, "bench")))
    began, cpu = time.perf_counter(), time.process_time()
    restored = tune.Tuner.restore(Path(folder, "bench"), train, run_config=tune.RunConfig(verbose=0)).fit()
    found["resume_s"], found["resume_cpu_s"] = time.perf_counter() - began, time.process_time() - cpu
    assert len(restored) == num_trials
    return found


def with_ray(engine: str, num_trials: int, num_reports: int, folder: str) -> dict[str, Any]:
    """The other side; the wall time does not include `ray.init`."""
    began = time.perf_counter()
    import ray
    from ray import tune

    ray.init(num_cpus=NUM_SLOTS, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    init_s = time.perf_counter() - began
    stamp = str(Path(folder, "stamp"))
    reuses = engine == "ray-reuse"
    code: Any = stepper(tune, num_reports) if reuses else objective(tune, num_reports, stamp if num_trials == 1 else "")
    config = tune.TuneConfig(
        metric="score", mode="max", num_samples=num_trials, max_concurrent_trials=NUM_SLOTS, reuse_actors=reuses
    )
    run = tune.RunConfig(name="bench", storage_path=folder, verbose=0)
    tuner = tune.Tuner(
        tune.with_resources(code, {"cpu": 1}), param_space={"x": tune.uniform(0, 1)}, tune_config=config, run_config=run
    )
    found = measured(tuner.fit, num_trials, num_reports)
    results = found.pop("value")
    assert results.num_errors == 0, results.errors[:1]
    found["stamp"] = float(Path(stamp).read_text()) if num_trials == 1 else 0.0
    ray.shutdown()
    return {**found, "init_s": init_s}


def measured(run: Callable[[], Any], num_trials: int, num_reports: int) -> dict[str, Any]:
    """Wall and CPU seconds of this process, and its memory after the sweep."""
    before, began, cpu = rss_bytes(), time.perf_counter(), time.process_time()
    value = run()
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return {
        "value": value,
        "wall_s": wall_s,
        "head_cpu_s": cpu_s,
        "trials_per_s": num_trials / wall_s,
        "reports_per_s": num_trials * num_reports / wall_s,
        "rss_before_bytes": before,
        "rss_bytes": rss_bytes(),
    }


def rss_bytes() -> int:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.exit(main())
