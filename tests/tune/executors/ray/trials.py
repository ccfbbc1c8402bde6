"""Trainables of these tests, in a module that workers import."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from windlass.tune.trainable import Trainable
from windlass.tune.trainable.session import get_context, report

__all__ = ["Climbs", "Forgets", "asks_ray", "counts", "place", "prints", "waits"]


class Forgets(Trainable):
    """A climb whose every step depends on all before it, and which cannot save; says on which node it runs.

    It holds before step `HOLD + 1` until the file `gate` is there; its steps take `sleep_s` on a node that can be taken away.
    """

    NUM_STEPS, HOLD = 44, 4

    def setup(self, config: dict[str, Any]) -> None:
        self.height = 0.0

    def step(self) -> dict[str, Any]:
        while self.iteration == self.HOLD and not Path(self.config["gate"]).exists():
            time.sleep(0.05)
        node = Path(os.environ.get("WINDLASS_NODE_FOLDER", "/first")).name
        time.sleep(0.02 if node == "first" else self.config["sleep_s"])
        self.height += self.config["rate"] * (10.0 - self.height)
        return {"height": self.height, "node": node, "done": self.iteration + 1 >= self.NUM_STEPS}


class Climbs(Forgets):
    """The same, with checkpoints."""

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "height").write_text(repr(self.height))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.height = float(Path(checkpoint, "height").read_text())


def counts(config: dict[str, Any]) -> None:
    """Reports `n` scores."""
    for step in range(config["n"]):
        time.sleep(config.get("sleep_s", 0.0))
        report({"score": config.get("x", 0) * step})


def place(config: dict[str, Any]) -> dict[str, Any]:
    """Says where it runs."""
    return {"pid": os.getpid(), "devices": os.environ.get("CUDA_VISIBLE_DEVICES", ""), "trial": get_context().trial_id}


def prints(config: dict[str, Any]) -> None:
    """Prints."""
    sys.stdout.write(config["text"] + "\n")


def waits(config: dict[str, Any]) -> None:
    """Says that it runs, and waits for a file."""
    report({"pid": os.getpid()})
    while not Path(config["until"]).exists():
        time.sleep(0.01)


def asks_ray(config: dict[str, Any]) -> dict[str, Any]:
    """Uses the trial's other bundles for a task of its own, as any code on Ray does."""
    import ray  # type: ignore[import-untyped,unused-ignore]
    from ray.util.placement_group import get_current_placement_group

    @ray.remote(num_cpus=1)  # type: ignore[untyped-decorator,unused-ignore]
    def inner() -> str | None:
        group = get_current_placement_group()
        return None if group is None else group.id.hex()

    group = get_current_placement_group()
    return {"mine": None if group is None else group.id.hex(), "inner": ray.get(inner.remote(), timeout=300)}
