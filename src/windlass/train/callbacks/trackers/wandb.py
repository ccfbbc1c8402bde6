"""Weights & Biases tracker, with one run across all restarts, and a tag that stops training."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from windlass.trackers.wandb_run import WandbRun, ensure_wandb, import_wandb
from windlass.train.callbacks.places import run_name
from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["Wandb"]

_MISSING = "callbacks of kind `wandb` need the package wandb, which is not installed"


class Wandb(TrainerCallback):
    """Callback that logs to Weights & Biases on rank 0.

    Checkpoints hold the run's id, so that a restart continues the run.

    W&B ignores steps that are logged again after a restart. Names, mode and
    key come from W&B's environment variables (`WANDB_API_KEY`, `WANDB_MODE=offline`, ...) by default.

    Args:
        project: name of the project; if empty, W&B's default.
        entity: team or user; if empty, W&B's default.
        tags: the run's tags.
        cancel_tags: adding one of these to the run stops training at the next step, with a checkpoint.
        poll_s: seconds between checks of the tags, in a separate thread.
    """

    def __init__(
        self,
        *,
        project: str = "",
        entity: str = "",
        tags: Sequence[str] = (),
        cancel_tags: Sequence[str] = ("cancel",),
        poll_s: float = 60.0,
    ) -> None:
        self.project, self.entity, self.tags = project, entity, tuple(tags)
        self.cancel_tags, self.poll_s = frozenset(cancel_tags), poll_s
        self._id = ""
        self._run: WandbRun | None = None
        self._wandb: Any = None
        self._is_over = threading.Event()
        self._watcher: threading.Thread | None = None

    def on_attach(self) -> None:
        """Raise if the package is not installed."""
        ensure_wandb(_MISSING)
        if self.trainer.world.is_main:
            self._wandb = import_wandb(_MISSING)

    def on_start(self) -> None:
        """Start or resume the run."""
        if self._wandb is None:
            return
        arguments = {
            "project": self.project or None,
            "entity": self.entity or None,
            "name": run_name(self.trainer) or None,
            "id": self._id or None,
            "tags": list(self.tags) or None,
            "config": dict(self.trainer.config),
        }
        self._run = WandbRun(self._wandb, arguments)
        self._id = self._run.id
        self._is_over.clear()
        if self.cancel_tags and not self._run.is_offline:
            self._watcher = threading.Thread(target=self._watch, args=(self._run,), name="wandb-tags", daemon=True)
            self._watcher.start()

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        if self._run is not None:
            self._run.log(metrics, step)

    def on_error(self, error: BaseException) -> None:
        """Mark the run as failed."""
        self._finish(1)

    def on_end(self) -> None:
        """Send the data that is still buffered."""
        self._finish(0)

    def state_dict(self) -> dict[str, Any]:
        """Return the id of the run; only rank 0 has it."""
        return {"id": self._id}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the run's id, so that the run is resumed."""
        self._id = str(state.get("id", ""))

    def _finish(self, code: int) -> None:
        self._is_over.set()
        run, self._run = self._run, None
        if run is not None:
            run.finish(code)

    def _watch(self, run: WandbRun) -> None:
        has_complained = False
        while not self._is_over.wait(self.poll_s):
            try:
                is_cancelled = run.has_tag(self.cancel_tags)
            except Exception as error:  # noqa: BLE001 - an unreachable server must not stop training
                if not has_complained:
                    sys.stderr.write(f"windlass: cannot check W&B for a cancel tag ({error}); will retry\n")
                has_complained = True
                continue
            if is_cancelled:
                self.trainer.request_stop()
                return
