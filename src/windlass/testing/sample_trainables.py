"""Trainables that workers of the conformance suites import by name and control by configuration."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from windlass.tune.trainable.checkpoint import Checkpoint
from windlass.tune.trainable.class_api import Trainable
from windlass.tune.trainable.session import get_checkpoint, report

__all__ = ["Counter", "act", "report_and_save", "show_environment"]


def act(config: dict[str, Any]) -> Any:
    """Report `num` values, and perform the actions that the configuration assigns to steps."""
    for step in range(config.get("num", 0)):
        if config.get("fails_at") == step:
            step // 0
        if config.get("exits_at") == step:
            os._exit(7)
        while "gate" in config and not os.path.exists(config["gate"]):
            time.sleep(0.01)
        metrics: dict[str, Any] = {"value": step, "nan": float("nan"), "inf": float("inf")}
        if config.get("reports_an_object"):
            metrics["thing"] = {"inner": object()}
        if "echo" in config:
            metrics["echo"] = config["echo"]
        report(metrics)
    return config.get("returns")


def report_and_save(config: dict[str, Any]) -> None:
    """Report `num` values, each with a checkpoint, and resume from a checkpoint if there is one."""
    begin = 0
    checkpoint = get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            begin = int(Path(folder, "step").read_text()) + 1
    for step in range(begin, config["num"]):
        with tempfile.TemporaryDirectory() as fresh:
            Path(fresh, "step").write_text(str(step))
            report({"value": step}, checkpoint=Checkpoint.from_directory(fresh))


def show_environment(config: dict[str, Any]) -> None:
    """Report the variables that an executor sets."""
    names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    report({name: os.environ.get(name) for name in names} | {"pid": os.getpid()})


class Counter(Trainable):
    """Trainable that adds `by` in every step, which takes `seconds`, and is done after `num` steps."""

    def setup(self, config: dict[str, Any]) -> None:
        """Start at zero."""
        self.value = 0

    def step(self) -> dict[str, Any]:
        """Add `by` to the sum."""
        time.sleep(self.config.get("seconds", 0.0))
        self.value += self.config["by"]
        return {"value": self.value, "done": self.iteration + 1 >= self.config["num"]}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        """Save the sum."""
        return {"value": self.value}

    def load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Load the sum."""
        self.value = checkpoint["value"]
