"""Submit, reconcile, follow, stop, retry: what clients do with runs. No process of ours needs to stay."""

from __future__ import annotations

from windlass.launch.api import Experiment, launch, launch_many, load
from windlass.launch.prepare import Options, Prepared, prepare, prepare_file
from windlass.launch.run import Run

__all__ = ["Experiment", "Options", "Prepared", "Run", "launch", "launch_many", "load", "prepare", "prepare_file"]
