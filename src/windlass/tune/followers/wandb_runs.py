"""Target for Weights & Biases, with one run per trial and the names and groups of Ray Tune's callback.

A run has the trial's id and is resumed. The step of a report is its number, and W&B ignores steps below the newest, so
repeated reports have no effect.

Source: the documentation of `wandb.init` (id, resume, reinit, 0.19.10 and newer) and of `Run.log` (step).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from windlass.trackers.wandb_run import WandbRun, import_wandb
from windlass.tune.controller.journal.history import TrialHistory
from windlass.tune.errors import BadValueError
from windlass.tune.followers.target import FollowedSweep, Target
from windlass.tune.results.columns import NestedMetrics, flatten

__all__ = ["WandbTarget"]

_TO_CONFIG = ("trial_id", "experiment_tag", "node_ip", "hostname", "pid", "date")
_NEVER = ("done", "should_checkpoint")
_MISSING = "following with Weights & Biases needs wandb, which is not installed"
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]+")


class WandbTarget(Target):
    """Target that logs to the W&B project `project` or WANDB_PROJECT; WANDB_MODE=offline needs no network.

    Args:
        group: group of the runs; by default the sweep's name.
        excludes: metrics and parameters that are not logged.
        log_config: also log the configuration with each report.
        upload_checkpoints: upload every checkpoint of a local folder as an artifact.
        init: further arguments of `wandb.init`.
        client: the module; by default the installed one.
    """

    name = "wandb"
    secrets: ClassVar = ("WANDB_API_KEY",)

    def __init__(
        self,
        *,
        project: str = "",
        group: str = "",
        excludes: Sequence[str] = (),
        log_config: bool = False,
        upload_checkpoints: bool = False,
        init: Mapping[str, Any] | None = None,
        client: Any = None,
    ) -> None:
        self._project, self._group = project, group
        self._excludes = frozenset(excludes)
        self._log_config = log_config
        self._uploads = upload_checkpoints
        self._init = dict(init or {})
        self._wandb = client
        self._runs: dict[str, WandbRun] = {}

    def open(self, sweep: FollowedSweep) -> None:
        """Import the library.

        Raises:
            PreconditionError: wandb is not installed (`extra-missing`).
            UsageError: no project is set (`missing-argument`).
        """
        self._sweep = sweep
        self._wandb = self._wandb or import_wandb(_MISSING)
        self._project = self._project or os.environ.get("WANDB_PROJECT", "")
        if not self._project and "project" not in self._init:
            raise BadValueError(
                "Weights & Biases needs a project",
                hint="WandbLoggerCallback(project='digits'), or set WANDB_PROJECT",
                code="missing-argument",
            )

    def started(self, trial: TrialHistory) -> None:
        """Open the run for the trial."""
        self._run(trial)

    def _run(self, trial: TrialHistory) -> WandbRun:
        if trial.id not in self._runs:
            config = {name: value for name, value in trial.config.items() if name not in self._excludes}
            arguments: dict[str, Any] = {
                "id": _NOT_IN_IDS.sub("-", f"{self._sweep.name}-{trial.id}"),
                "name": f"{self._sweep.trainable.rsplit(':', 1)[-1]}_{trial.id}",
                "reinit": "create_new",
                "allow_val_change": True,
                "group": self._group or self._sweep.name,
                "project": self._project,
                "config": config,
                "dir": str(self._folder(trial)),
            }
            self._runs[trial.id] = WandbRun(self._wandb, {**arguments, **self._init})
        return self._runs[trial.id]

    def _folder(self, trial: TrialHistory) -> Path:
        folder = self._sweep.folder.trial(trial.id)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def configured(self, trial: TrialHistory) -> None:
        """Replace the configuration of the run."""
        self._run(trial).update_config(trial.config)

    def reported(self, trial: TrialHistory, result: NestedMetrics, number: int, at: float) -> None:
        """Log a report; fields that describe the trial are added to the run's configuration."""
        run = self._run(trial)
        left_out = {*_NEVER, *self._excludes, *(() if self._log_config else ("config",))}
        flat = flatten({name: value for name, value in result.items() if name not in left_out})
        run.update_config({name: flat.pop(name) for name in _TO_CONFIG if name in flat})
        run.log(flat, number)

    def saved(self, trial: TrialHistory, path: str) -> None:
        """Upload a checkpoint if that is enabled and the checkpoint is in a local folder."""
        folder = self._sweep.folder.path / path
        if self._uploads and folder.is_dir():
            self._run(trial).upload_model(f"checkpoint_{self._sweep.name}-{trial.id}", str(folder))

    def ended(self, trial: TrialHistory, *, is_failed: bool) -> None:
        """Finish the run."""
        run = self._runs.pop(trial.id, None) or self._run(trial)
        self._runs.pop(trial.id, None)
        run.finish(int(is_failed))

    def close(self, *, is_over: bool) -> None:
        """Finish every open run.

        A later follower resumes the runs of unfinished trials.
        """
        for run in self._runs.values():
            run.finish()
        self._runs.clear()
