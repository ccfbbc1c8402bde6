"""Launch, reconcile, follow, stop and retry runs. No windlass process has to keep running."""

from __future__ import annotations

from windlass.launcher.api import Experiment, launch, launch_many, load
from windlass.launcher.prepare import Options, Prepared, prepare, prepare_file
from windlass.launcher.run import Run

__all__ = ["Experiment", "Options", "Prepared", "Run", "launch", "launch_many", "load", "prepare", "prepare_file"]
