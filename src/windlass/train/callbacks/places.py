"""Where callbacks write, and what a run is called, when nobody says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass import report

if TYPE_CHECKING:
    from windlass.train.trainer import Trainer

__all__ = ["run_folder", "run_name"]


def run_folder(trainer: Trainer[Any]) -> Path:
    """The task's output folder in windlass; else beside the checkpoints where those are local; else here."""
    if report.is_active():
        return report.place().out
    path = str(getattr(trainer.store, "path", ""))
    return Path() if not path or "://" in path else Path(path)


def run_name(trainer: Trainer[Any]) -> str:
    """The recipe's name, else the run's in windlass, else empty."""
    recipe = trainer.config.get("recipe", {})
    name = recipe.get("name", "") if isinstance(recipe, dict) else ""
    return str(name) or report.place().run
