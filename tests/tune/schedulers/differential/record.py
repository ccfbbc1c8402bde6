"""Writes the recorded traces anew: `python -m tests.tune.schedulers.differential.record`, where Ray is installed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

from tests.tune.schedulers.differential.cases import CASES
from tests.tune.schedulers.differential.match import play

TRACES = Path(__file__).parent.parent / "traces"
NUM_STREAMS = 5


def main() -> None:
    """One file per case."""
    for name, make in CASES.items():
        streams = []
        for seed in range(NUM_STREAMS):
            ours, rays, habits = make(seed)
            short = replace(habits, num_events=60, max_trials=min(habits.max_trials, 10))
            streams.append(
                {
                    "seed": seed,
                    "scheduler": ours.scheduler.settings(),
                    "capacity": ours.sweep.capacity,
                    "config": habits.config,
                    "shape": habits.shape,
                    "events": play(ours, rays, short, Random(seed)),
                    "configs": ours.configs() if habits.config else [],
                    "shapes": ours.shapes(),
                }
            )
        text = ",\n".join(json.dumps(stream) for stream in streams)
        (TRACES / f"{name}.json").write_text(f"[\n{text}\n]\n", encoding="ascii")


if __name__ == "__main__":
    main()
