"""`Trainable`: a trial as a class with `setup`, `step`, `save_checkpoint` and `load_checkpoint`.

The names of Ray Tune, those of its first published form (`_setup`, `_train`, `_save`, `_restore`, `_stop`) included.
"""

from __future__ import annotations

import copy
import os
import platform
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from windlass.core.errors import PreconditionError
from windlass.tune.errors import BadValueError
from windlass.tune.trainable.checkpoint import Checkpoint
from windlass.tune.trainable.metrics import TIME_DIGITS
from windlass.tune.trainable.saving import load_state, save_state
from windlass.tune.trainable.session import current_session
from windlass.tune.trial import Resources

__all__ = ["Trainable"]


class Trainable:
    """A trial that is asked for one step after another. Subclass it, and override `setup` and `step` at least.

    In a sweep one object is one trial; a worker that takes the next trial makes a new one. With `reuse_actors=True` it
    keeps the object where `reset_config` says that it became the other trial. It can also be driven by hand: `train`,
    `save`, `restore`, `stop`.

    Args:
        config: the configuration; `setup` gets a copy.
    """

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        self.config: dict[str, Any] = config or {}
        self._clear_counts()
        self._logdir: str | None = None
        self.setup(copy.deepcopy(self.config))

    def _clear_counts(self) -> None:
        self._iteration = 0
        self._time_total = 0.0
        self._iterations_since_restore = 0
        self._time_since_restore = 0.0
        self._timesteps_total: float | None = None
        self._episodes_total: float | None = None
        self._last_result: dict[str, Any] | None = None

    # ------------------------------------------------------------------------------------------- for subclasses

    def setup(self, config: dict[str, Any]) -> None:
        """Make what the trial needs from its configuration."""
        self._setup(config)

    def step(self) -> dict[str, Any]:
        """One iteration; returns its metrics. `done: True` ends the trial, `should_checkpoint: True` saves it."""
        return self._train()

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | str | None:
        """Write files into a fresh folder, or return a dict that is kept instead."""
        return self._save(checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on from what `save_checkpoint` returned: its dict, or the folder. The folder may lie elsewhere now."""
        self._restore(checkpoint)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial without a new object; True when done. Must leave nothing of the old one."""
        return False

    def cleanup(self) -> None:
        """Release what `setup` took. Not called when the worker is killed."""
        self._stop()

    def log_result(self, result: dict[str, Any]) -> None:
        """Called in the worker with every result, before the sweep hears of it."""
        self._log_result(result)

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Resources | Mapping[str, float] | None:
        """What a trial with this configuration needs, unless the sweep says it; None: one CPU."""
        return None

    @classmethod
    def resource_help(cls, config: dict[str, Any]) -> str:
        """How to state resources for this trainable, in words."""
        return ""

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        """Write the model in these formats; returns format to path."""
        return {}

    # ------------------------------------------------------------ the first published form; override one or the other

    def _setup(self, config: dict[str, Any]) -> None:
        """As `setup`."""

    def _train(self) -> dict[str, Any]:
        """As `step`."""
        raise PreconditionError(
            f"{type(self).__name__} has no `step`",
            hint="override step(self) and return the metrics of one iteration",
            code="trainable-incomplete",
        )

    def _save(self, checkpoint_dir: str) -> dict[str, Any] | str | None:
        """As `save_checkpoint`."""
        raise _cannot_save(type(self))

    def _restore(self, checkpoint: Any) -> None:
        """As `load_checkpoint`."""
        raise PreconditionError(
            f"{type(self).__name__} has no `load_checkpoint`",
            hint="override load_checkpoint(self, checkpoint) beside save_checkpoint",
            code="trainable-incomplete",
        )

    def _stop(self) -> None:
        """As `cleanup`."""

    def _log_result(self, result: dict[str, Any]) -> None:
        """As `log_result`."""

    # ------------------------------------------------------------------------------------------------ who it is

    @property
    def iteration(self) -> int:
        """Steps done by this trial, those before a restore included."""
        return self._iteration

    @property
    def training_iteration(self) -> int:
        """As `iteration`."""
        return self._iteration

    @property
    def trial_id(self) -> str:
        """Id of the trial; `default` outside of a sweep."""
        session = current_session()
        return session.context.trial_id if session else "default"

    @property
    def trial_name(self) -> str:
        """Name of the trial; `default` outside of a sweep."""
        session = current_session()
        return session.context.trial_name if session else "default"

    @property
    def trial_resources(self) -> Resources | None:
        """What the trial was given; None outside of a sweep."""
        session = current_session()
        return session.context.resources if session else None

    @property
    def logdir(self) -> str:
        """A folder where the trial may write, made when first asked for; a temporary one outside of a sweep."""
        if self._logdir is None:
            session = current_session()
            self._logdir = session.context.get_trial_dir() if session else tempfile.mkdtemp(prefix="trial-")
        return self._logdir

    def get_config(self) -> dict[str, Any]:
        """The configuration."""
        return self.config

    # --------------------------------------------------------------------------------------------- driven by hand

    def advance(self) -> dict[str, Any]:
        """One `step`, counted; returns its metrics with `training_iteration`, `time_this_iter_s`, `time_total_s`."""
        begin = time.perf_counter()
        result = self.step()
        if not isinstance(result, dict):
            raise BadValueError(
                f"{type(self).__name__}.step returned {result!r:.60}, which is no dict",
                hint="return the metrics of the step: {'loss': 0.1}",
                code="bad-metrics",
            )
        result = result.copy()
        given = result.get("time_this_iter_s")
        seconds = round(time.perf_counter() - begin, TIME_DIGITS) if given is None else float(given)
        self._iteration += 1
        self._iterations_since_restore += 1
        self._time_total += seconds
        self._time_since_restore += seconds
        self._add_totals(result)
        result["training_iteration"] = self._iteration
        result["time_this_iter_s"] = seconds
        result["time_total_s"] = round(self._time_total, TIME_DIGITS)
        self._last_result = result
        return result

    def _add_totals(self, result: dict[str, Any]) -> None:
        """Sums of `timesteps_this_iter` and `episodes_this_iter`, for those who report them."""
        if result.get("timesteps_this_iter") is not None:
            self._timesteps_total = (self._timesteps_total or 0) + result["timesteps_this_iter"]
        if result.get("episodes_this_iter") is not None:
            self._episodes_total = (self._episodes_total or 0) + result["episodes_this_iter"]
        if self._timesteps_total is not None:
            result.setdefault("timesteps_total", self._timesteps_total)
        if self._episodes_total is not None:
            result.setdefault("episodes_total", self._episodes_total)

    def train(self) -> dict[str, Any]:
        """One `step`; returns its metrics with everything that a reader of the sweep sees."""
        result = self.advance()
        result.setdefault("done", False)
        now = time.time()
        result.setdefault("timestamp", int(now))
        result |= {
            "trial_id": self.trial_id,
            "date": time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now)),
            "pid": os.getpid(),
            "hostname": platform.node(),
            "config": self.config,
            "time_since_restore": self._time_since_restore,
            "iterations_since_restore": self._iterations_since_restore,
        }
        self.log_result(result)
        return result

    def save(self, checkpoint_dir: str | None = None) -> Checkpoint:
        """Save into a folder (a fresh temporary one without it), not committed to any sweep.

        Raises:
            PreconditionError: the class cannot save.
        """
        folder = checkpoint_dir or tempfile.mkdtemp(prefix="checkpoint-")
        os.makedirs(folder, exist_ok=True)
        save_state(self, folder)
        return Checkpoint.from_directory(folder)

    def restore(self, checkpoint: Checkpoint | str) -> None:
        """Load what `save` wrote, counts included."""
        found = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        with found.as_directory() as folder:
            load_state(self, folder)

    def reset(self, new_config: dict[str, Any]) -> bool:
        """Become another trial with this configuration, if `reset_config` can; counts begin anew."""
        before, self.config = self.config, new_config
        if not self.reset_config(copy.deepcopy(new_config)):
            self.config = before
            return False
        self._clear_counts()
        self._logdir = None
        return True

    def stop(self) -> None:
        """Release everything; calls `cleanup`."""
        self.cleanup()

    def export_model(self, export_formats: list[str] | str, export_dir: str | None = None) -> dict[str, str]:
        """Export the model; override `_export_model`."""
        formats = [export_formats] if isinstance(export_formats, str) else export_formats
        return self._export_model(formats, export_dir or self.logdir)


def _cannot_save(cls: type) -> PreconditionError:
    return PreconditionError(
        f"{cls.__name__} cannot save: it has no `save_checkpoint`",
        hint="override save_checkpoint(self, checkpoint_dir) and load_checkpoint(self, checkpoint)",
        code="trainable-incomplete",
    )
