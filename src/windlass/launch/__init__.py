"""Launch, reconcile, follow, stop and retry runs. No windlass process has to keep running."""

from __future__ import annotations

from windlass.launch.api import Experiment, launch, launch_many, load
from windlass.launch.prepare import Options, Prepared, prepare, prepare_file
from windlass.launch.run import Run

__all__ = ["Experiment", "Options", "Prepared", "Run", "launch", "launch_many", "load", "prepare", "prepare_file"]
