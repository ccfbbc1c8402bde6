"""Schedules of windlass beside those of ai2-olmo-core: every step of a run of a thousand.

    python benches/bench_schedule_parity.py

Needs ai2-olmo-core beside windlass (`make .venv-bench/.made`); seconds. Ends with an error when a rate differs by more
than 1e-12 of the peak.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from olmo_core.optim import scheduler as theirs

from windlass import train
from windlass.train.optim.schedule_config import ScheduleConfig
from windlass.train.optim.schedules import ScheduleStep, lr_factor

STEPS, PEAK, BOUND = 1000, 3e-4, 1e-12
steps = train.Duration.steps
PERIODS = [200, 300, 500]

PAIRS: dict[str, tuple[Any, ScheduleConfig]] = {
    "cosine": (theirs.CosWithWarmup(warmup=37), train.CosineConfig(warmup=steps(37))),
    "half-cosine": (theirs.HalfCosWithWarmup(warmup=37), train.HalfCosineConfig(warmup=steps(37))),
    "wsd": (
        theirs.WSD(warmup=37, decay=100, decay_fraction=None),
        train.WSDConfig(warmup=steps(37), decay=steps(100)),
    ),
    "wsd-s, share": (
        theirs.WSDS(period_lengths=PERIODS, warmup=37, decay_fraction=0.1),
        train.WSDSConfig(periods=tuple(map(steps, PERIODS)), warmup=steps(37), decay_share=0.1),
    ),
    "wsd-s, peaks": (
        theirs.WSDS(
            period_lengths=PERIODS, warmup=37, decay=50, decay_min_lr=0.1 * PEAK, period_lr_multipliers=[1.0, 0.8, 0.6]
        ),
        train.WSDSConfig(
            periods=tuple(map(steps, PERIODS)), warmup=steps(37), decay=steps(50), final=0.1, peaks=(1.0, 0.8, 0.6)
        ),
    ),
    "power": (
        theirs.PowerLR(b=-0.51, warmup=37, decay=120, decay_fraction=None),
        train.PowerConfig(exponent=-0.51, warmup=steps(37), decay=steps(120)),
    ),
    "exponential": (
        theirs.ExponentialScheduler(lr_min=1e-9),
        train.ExponentialConfig(begin=1e-9 / PEAK, final=1.0),
    ),
    "inverse-sqrt": (
        theirs.InvSqrtWithWarmup(warmup=37, alpha_f=0.0),
        train.InverseSqrtConfig(warmup=steps(37)),
    ),
}


def main() -> int:
    """Print the largest difference of each pair, as a share of the peak."""
    worst = 0.0
    for name, (other, own) in PAIRS.items():
        apart = max(
            abs(other.get_lr(PEAK, step, STEPS) / PEAK - lr_factor(own, ScheduleStep(step=step), steps(STEPS)))
            for step in range(1, STEPS + 1)
        )
        worst = max(worst, apart)
        print(f"{name:<14}{apart:.1e}")
    return 0 if worst <= BOUND else 1


if __name__ == "__main__":
    raise SystemExit(main())
