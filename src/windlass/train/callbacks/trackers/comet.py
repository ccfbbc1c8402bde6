"""Comet tracker, with one experiment across all restarts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.core.extras import ensure_installed, require
from windlass.train.callbacks.places import run_name
from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["Comet"]

_MISSING = "callbacks of kind `comet` need the package comet-ml, which is not installed"
_HINT = "pip install comet-ml"


class Comet(TrainerCallback):
    """Callback that logs to Comet on rank 0.

    Checkpoints hold the experiment's key, so that a restart continues the experiment.

    The API key comes from Comet's own settings (`COMET_API_KEY`, `comet login`).

    Args:
        project: name of the project; if empty, Comet's default.
        workspace: name of the workspace; if empty, Comet's default.
    """

    def __init__(self, *, project: str = "", workspace: str = "") -> None:
        self.project, self.workspace = project, workspace
        self._key = ""
        self._comet: Any = None
        self._experiment: Any = None

    def on_attach(self) -> None:
        """Raise if the package is not installed."""
        ensure_installed("comet_ml", _MISSING, hint=_HINT)
        if self.trainer.world.is_main:
            self._comet = require("comet_ml", _MISSING, hint=_HINT)

    def on_start(self) -> None:
        """Start or resume the experiment."""
        if self._comet is None:
            return
        self._experiment = self._comet.start(
            workspace=self.workspace or None,
            project_name=self.project or None,
            experiment_key=self._key or None,
            mode="get_or_create",
        )
        if not self._key:
            name = run_name(self.trainer)
            if name:
                self._experiment.set_name(name)
            self._experiment.log_parameters(dict(self.trainer.config))
        self._key = str(self._experiment.get_key())

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        if self._experiment is not None:
            self._experiment.log_metrics(dict(metrics), step=step)

    def on_end(self) -> None:
        """Send the data that is still buffered."""
        experiment, self._experiment = self._experiment, None
        if experiment is not None:
            experiment.end()

    def state_dict(self) -> dict[str, Any]:
        """Return the key of the experiment; only rank 0 has it."""
        return {"key": self._key}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the experiment's key, so that the experiment is resumed."""
        self._key = str(state.get("key", ""))
