"""Small sweeps that run in this process: trainables, and configs that show nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass import tune

__all__ = ["Counting", "bowl", "here", "quiet"]


def bowl(config: dict[str, Any]) -> None:
    """Four reports, the best at x = 3."""
    for step in range(4):
        tune.report({"loss": (config["x"] - 3) ** 2 / (step + 1)})


class Counting(tune.Trainable):
    """Counts its steps, and saves them."""

    def setup(self, config: dict[str, Any]) -> None:
        self.count = 0

    def step(self) -> dict[str, Any]:
        self.count += 1
        if self.count == self.config.get("fails_at"):
            raise RuntimeError("as it was told")
        return {"count": self.count, "score": self.count * self.config.get("x", 1)}

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any]:
        return {"count": self.count}

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.count = checkpoint["count"]


def here(**settings: Any) -> tune.TuneConfig:
    """A config whose trials run in this process."""
    return tune.TuneConfig(executor="in-process", **settings)


def quiet(folder: Path, name: str = "sweep", **settings: Any) -> tune.RunConfig:
    """A config whose sweep shows nothing."""
    return tune.RunConfig(name=name, storage_path=folder, verbose=0, **settings)
