"""The sweep of the distribution tests, as a program: `python -m tests.tune.distributed.sweep EXECUTOR FOLDER`.

64 trials of random search, first in first out; each is six steps with a checkpoint every second one. The same command
goes on with a sweep that is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from windlass.tune.controller.controller import Controller
from windlass.tune.controller.settings import SweepSettings
from windlass.tune.executors.protocol import Executor, Work
from windlass.tune.folder import SweepFolder
from windlass.tune.schedulers.fifo import FIFO
from windlass.tune.search.basic_variant import BasicVariantGenerator
from windlass.tune.search.protocol import Objectives
from windlass.tune.space.primitives import choice, uniform
from windlass.tune.trainable.class_api import Trainable

__all__ = ["HOLD", "NUM_STEPS", "NUM_TRIALS", "Descent", "run_sweep"]

NUM_TRIALS, NUM_STEPS = 64, 6

HOLD = Path("/tmp/windlass-hold")
"""Where a host has this file, its trials wait after the third step."""


class Descent(Trainable):
    """Gradient descent on a parabola: what a step gives depends on all steps before it."""

    def setup(self, config: dict[str, Any]) -> None:
        self.x = 10.0

    def step(self) -> dict[str, Any]:
        time.sleep(self.config["sleep_s"])
        while self.iteration >= 3 and HOLD.exists():
            time.sleep(0.05)
        self.x -= self.config["rate"] * 2 * (self.x - self.config["target"])
        return {"loss": (self.x - self.config["target"]) ** 2, "done": self.iteration + 1 >= NUM_STEPS}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "x").write_text(repr(self.x))
        Path(checkpoint_dir, "empty").touch()

    def load_checkpoint(self, checkpoint: str) -> None:
        self.x = float(Path(checkpoint, "x").read_text())


def run_sweep(executor: Executor, folder: Path, *, sleep_s: float) -> None:
    """Run or go on with the sweep, to its end."""
    make = Controller.restore if SweepFolder(folder).head_journal.exists() else Controller
    storage = str(SweepFolder(folder).checkpoints)
    controller = make(
        settings=SweepSettings(
            name="far", objectives=Objectives(metrics=("loss",), is_max=(False,)), num_samples=NUM_TRIALS, seed=7
        ),
        space={"rate": uniform(0.01, 0.4), "target": choice([-1.0, 0.5, 3.0]), "sleep_s": sleep_s},
        searcher=BasicVariantGenerator(),
        scheduler=FIFO(),
        executor=executor,
        work=Work(trainable=Descent, name="far", folder=str(folder), storage=storage, checkpoint_every=2),
        folder=folder,
    )
    sys.stdout.write(f"{controller.run()}\n")


def main() -> None:
    kind, folder, sleep_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    run_sweep(_make(kind), folder, sleep_s=sleep_s)


def _make(kind: str) -> Executor:
    if kind == "ray":
        from windlass.tune.executors.ray import RayExecutor

        node = os.environ.get("RAY_LAB_NODE", "")  # on a machine with several nodes, some of them dead
        return RayExecutor(init={"_node_ip_address": node} if node else None)
    from windlass.tune.executors.local import Local

    return Local()


if __name__ == "__main__":
    main()
