"""Step time of GRPO with generation beside learning: `python benches/bench_post_overlap.py [steps [repeats]]`.

A llama of one million parameters, 32 prompts x 8 answers of up to 24 tokens a step, one thread for the learner and one for
the worker. G is the time to generate and score a batch, T the rest of a step, both of a run with `async.bound=0`; the step of a run
with `async.bound=2` should take at most 1.15 times the longer of the two. Runs alternate, medians over steps without the first ones.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

os.environ["OMP_NUM_THREADS"] = "1"

import torch

from windlass.train.build import build_trainer
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.parallel.world import World
from windlass.train.resolve import resolve

TARGET = 1.15
SKIPPED = 4
"""First steps, which start workers and fill the batches ahead."""


class Clock(TrainerCallback):
    """Notes when steps end, and how long each waited for its batch."""

    def __init__(self) -> None:
        self.ends_s: list[float] = []
        self.waits_s: list[float] = []

    def on_step_end(self) -> None:
        """Note the end of a step."""
        self.ends_s.append(time.perf_counter())
        self.waits_s.append(self.trainer.data_wait_s)


def times(folder: Path, steps: int, *settings: str) -> tuple[float, float]:
    """Return the median step time, and the median wait for a batch, in seconds."""
    rows = ({"prompt": f"{a:02d}+{b:02d}=", "answer": str(a + b)} for a in range(40) for b in range(40))
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    overrides = (
        *("model=llama-1m", "data.tokenizer.path=bytes", "data.template=plain", "~callbacks", "no_checkpoints=true"),
        *("data.max_length=16", "data.batch_rows=32", "data.microbatch_tokens=16384", "reward.verifiers=[exact]"),
        *("rollout.max_new_tokens=24", "rollout.num_slots=256", "rollout.drop_constant_groups=false"),
        *(f"data.mix.0.source={source}", f"data.cache={folder / 'cache'}", f"duration={steps}steps", *settings),
    )
    trainer = build_trainer(resolve("grpo", overrides), World(device=torch.device("cpu")))
    clock = Clock()
    trainer.add_callback("clock", clock)
    trainer.fit()
    gaps = [after - before for before, after in zip(clock.ends_s, clock.ends_s[1:], strict=False)]
    return median(gaps[SKIPPED:]), median(clock.waits_s[SKIPPED:])


def main() -> int:
    """Print the times; return 1 if the step is longer than the target."""
    steps, repeats = (int(word) for word in (*sys.argv[1:], *("24", "3")[len(sys.argv) - 1 :]))
    torch.set_num_threads(1)
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            step_s, wait_s = times(Path(folder), steps)
            own_s = step_s - wait_s
            beside_s, _ = times(Path(folder), steps, "async.bound=2", "objective.correction={clamp_max: 2.0}")
            ratios.append(beside_s / max(wait_s, own_s))
            print(
                f"generation {wait_s * 1e3:.0f} ms, learning {own_s * 1e3:.0f} ms, one after the other {step_s * 1e3:.0f} ms, "
                f"beside each other {beside_s * 1e3:.0f} ms: {ratios[-1]:.2f} of the longer"
            )
    print(f"median {median(ratios):.2f} (target {TARGET})")
    return int(median(ratios) > TARGET)


if __name__ == "__main__":
    raise SystemExit(main())
