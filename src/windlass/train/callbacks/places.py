"""Default output folder and default run name for callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass import report

if TYPE_CHECKING:
    from windlass.train.trainer import Trainer

__all__ = ["run_folder", "run_name"]


def run_folder(trainer: Trainer[Any]) -> Path:
    """Return the task's output folder, else the local checkpoint folder, else the working directory."""
    if report.is_active():
        return report.place().out
    path = str(getattr(trainer.store, "path", ""))
    return Path() if not path or "://" in path else Path(path)


def run_name(trainer: Trainer[Any]) -> str:
    """Return the name of the recipe, else the name of the windlass run, else an empty string."""
    recipe = trainer.config.get("recipe", {})
    name = recipe.get("name", "") if isinstance(recipe, dict) else ""
    return str(name) or report.place().run
