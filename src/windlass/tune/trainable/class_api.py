"""`Trainable`: a trial as a class with `setup`, `step`, `save_checkpoint` and `load_checkpoint`.

The names are those of Ray Tune, with those of its first interface (`_setup`, `_train`, `_save`, `_restore`, `_stop`) included.
"""

from __future__ import annotations

import copy
import json
import os
import platform
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass.core.errors import PreconditionError, UsageError
from windlass.core.json_text import decode_json
from windlass.tune.errors import BadValueError
from windlass.tune.trainable.checkpoint import Checkpoint
from windlass.tune.trainable.metrics import TIME_DIGITS
from windlass.tune.trainable.session import current_session
from windlass.tune.trial import Resources

__all__ = ["Trainable", "load_state", "save_state"]

_FACTS = ".windlass.json"
_STATE = "state.json"
_PICKLE = "state.pickle"
_COUNTS = {
    "iteration": "_iteration",
    "time_total_s": "_time_total",
    "timesteps_total": "_timesteps_total",
    "episodes_total": "_episodes_total",
}


class Trainable:
    """Base class for trials that run in steps. Subclass it, and override at least `setup` and `step`.

    In a sweep, a worker creates an object for each trial; with `reuse_actors=True`, it reuses the object if
    `reset_config` returns True. The class can also be used without a sweep: `train`, `save`, `restore`, `stop`.

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
        """Prepare the trial, given its configuration."""
        self._setup(config)

    def step(self) -> dict[str, Any]:
        """Run one iteration and return its metrics.

        `done: True` ends the trial, `should_checkpoint: True` saves it.
        """
        return self._train()

    def save_checkpoint(self, checkpoint_dir: str) -> dict[str, Any] | str | None:
        """Write files to an empty folder, or return a dict to be saved instead."""
        return self._save(checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Continue from a saved state.

        It is the dict that `save_checkpoint` returned, or its folder, which may have moved.
        """
        self._restore(checkpoint)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Switch this object to a new trial, keeping no state of the old one; return True if that is supported."""
        return False

    def cleanup(self) -> None:
        """Release the resources acquired in `setup`. Not called when the worker is killed."""
        self._stop()

    def log_result(self, result: dict[str, Any]) -> None:
        """Called in the worker with every result before it is reported."""
        self._log_result(result)

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Resources | Mapping[str, float] | None:
        """Return the resources for a trial with this configuration; None stands for one CPU.

        Resources that the sweep sets take precedence.
        """
        return None

    @classmethod
    def resource_help(cls, config: dict[str, Any]) -> str:
        """Return a help text about the resources that this trainable needs."""
        return ""

    def _export_model(self, export_formats: list[str], export_dir: str) -> dict[str, str]:
        """Write the model in these formats; return the path for each format."""
        return {}

    # ------------------------------------------------------------ the first interface; override one or the other

    def _setup(self, config: dict[str, Any]) -> None:
        """Old name of `setup`."""

    def _train(self) -> dict[str, Any]:
        """Old name of `step`."""
        raise PreconditionError(
            f"{type(self).__name__} has no `step`",
            hint="override step(self) and return the metrics of one iteration",
            code="invalid-trainable",
        )

    def _save(self, checkpoint_dir: str) -> dict[str, Any] | str | None:
        """Old name of `save_checkpoint`."""
        raise _cannot_save(type(self))

    def _restore(self, checkpoint: Any) -> None:
        """Old name of `load_checkpoint`."""
        raise PreconditionError(
            f"{type(self).__name__} has no `load_checkpoint`",
            hint="override load_checkpoint(self, checkpoint) beside save_checkpoint",
            code="invalid-trainable",
        )

    def _stop(self) -> None:
        """Old name of `cleanup`."""

    def _log_result(self, result: dict[str, Any]) -> None:
        """Old name of `log_result`."""

    # ------------------------------------------------------------------------------------------------ identity

    @property
    def iteration(self) -> int:
        """Number of steps that this trial has taken, including those before a restore."""
        return self._iteration

    @property
    def training_iteration(self) -> int:
        """Same as `iteration`."""
        return self._iteration

    @property
    def trial_id(self) -> str:
        """Id of the trial, or `default` outside a sweep."""
        session = current_session()
        return session.context.trial_id if session else "default"

    @property
    def trial_name(self) -> str:
        """Name of the trial, or `default` outside a sweep."""
        session = current_session()
        return session.context.trial_name if session else "default"

    @property
    def trial_resources(self) -> Resources | None:
        """Resources of the trial, or None outside a sweep."""
        session = current_session()
        return session.context.resources if session else None

    @property
    def logdir(self) -> str:
        """Folder for the trial's files, created on first use; outside a sweep it is temporary."""
        if self._logdir is None:
            session = current_session()
            self._logdir = session.context.get_trial_dir() if session else tempfile.mkdtemp(prefix="trial-")
        return self._logdir

    def get_config(self) -> dict[str, Any]:
        """Return the configuration."""
        return self.config

    # --------------------------------------------------------------------------------------------- without a sweep

    def advance(self) -> dict[str, Any]:
        """Run `step` and return its metrics with `training_iteration`, `time_this_iter_s` and `time_total_s`."""
        begin = time.perf_counter()
        result = self.step()
        if not isinstance(result, dict):
            raise BadValueError(
                f"{type(self).__name__}.step returned {result!r:.60}, not a dict",
                hint="return the metrics of the step: {'loss': 0.1}",
                code="invalid-value",
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
        """Add the totals of `timesteps_this_iter` and `episodes_this_iter` if they are reported."""
        if result.get("timesteps_this_iter") is not None:
            self._timesteps_total = (self._timesteps_total or 0) + result["timesteps_this_iter"]
        if result.get("episodes_this_iter") is not None:
            self._episodes_total = (self._episodes_total or 0) + result["episodes_this_iter"]
        if self._timesteps_total is not None:
            result.setdefault("timesteps_total", self._timesteps_total)
        if self._episodes_total is not None:
            result.setdefault("episodes_total", self._episodes_total)

    def train(self) -> dict[str, Any]:
        """Run `step` and return its metrics with all added fields."""
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
        """Save to a folder, by default a new temporary one, outside any sweep.

        Raises:
            PreconditionError: the class cannot save.
        """
        folder = checkpoint_dir or tempfile.mkdtemp(prefix="checkpoint-")
        os.makedirs(folder, exist_ok=True)
        save_state(self, folder)
        return Checkpoint.from_directory(folder)

    def restore(self, checkpoint: Checkpoint | str) -> None:
        """Load a state that `save` wrote, including the counts."""
        found = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        with found.as_directory() as folder:
            load_state(self, folder)

    def reset(self, new_config: dict[str, Any]) -> bool:
        """Switch to a new trial with this configuration, if `reset_config` supports that; counts start again."""
        before, self.config = self.config, new_config
        if not self.reset_config(copy.deepcopy(new_config)):
            self.config = before
            return False
        self._clear_counts()
        self._logdir = None
        return True

    def stop(self) -> None:
        """Release all resources, by calling `cleanup`."""
        self.cleanup()

    def export_model(self, export_formats: list[str] | str, export_dir: str | None = None) -> dict[str, str]:
        """Export the model; override `_export_model`."""
        formats = [export_formats] if isinstance(export_formats, str) else export_formats
        return self._export_model(formats, export_dir or self.logdir)


def _cannot_save(cls: type) -> PreconditionError:
    return PreconditionError(
        f"{cls.__name__} cannot save: it has no `save_checkpoint`",
        hint="override save_checkpoint(self, checkpoint_dir) and load_checkpoint(self, checkpoint)",
        code="invalid-trainable",
    )


# ------------------------------------------------------------------------------------------------- files of a state


def save_state(trainable: Trainable, folder: str) -> None:
    """Save a trainable to a folder.

    A dict that JSON represents exactly is written as JSON; any other is pickled.

    Raises:
        UsageError: `save_checkpoint` returned neither a dict nor a path in the folder nor None.
    """
    returned = trainable.save_checkpoint(folder)
    facts: dict[str, Any] = {name: getattr(trainable, attribute) for name, attribute in _COUNTS.items()}
    if isinstance(returned, dict):
        facts["state"] = _write_state(returned, folder)
    elif isinstance(returned, str | os.PathLike):
        facts["path"] = _relative(str(returned), folder, trainable)
    elif returned is not None:
        raise _refusal(trainable, returned)
    Path(folder, _FACTS).write_text(json.dumps(facts))


def _write_state(state: dict[str, Any], folder: str) -> str:
    if _is_exact(state):
        Path(folder, _STATE).write_text(json.dumps(state))
        return _STATE
    import pickle  # lazy: most states are JSON or files

    with Path(folder, _PICKLE).open("wb") as file:
        pickle.dump(state, file, protocol=pickle.HIGHEST_PROTOCOL)
    return _PICKLE


def _is_exact(value: object) -> bool:
    """Return whether JSON represents a value exactly."""
    if type(value) is dict:
        return all(type(key) is str and _is_exact(inner) for key, inner in value.items())
    if type(value) is list:
        return all(_is_exact(inner) for inner in value)
    return type(value) in (str, int, float, bool, type(None))


def _relative(returned: str, folder: str, trainable: Trainable) -> str:
    relative = os.path.relpath(os.path.join(folder, returned), folder)
    if relative == os.pardir or relative.startswith(os.pardir + os.sep):
        raise _refusal(trainable, returned)
    return relative


def _refusal(trainable: Trainable, returned: object) -> UsageError:
    return BadValueError(
        f"{type(trainable).__name__}.save_checkpoint returned {returned!r:.100}",
        hint="return a dict, or write files into checkpoint_dir and return None",
        code="invalid-value",
    )


def load_state(trainable: Trainable, folder: str) -> None:
    """Load the state that `save_state` wrote, or any folder of files, into a trainable, including the counts."""
    facts: dict[str, Any] = {}
    if os.path.exists(os.path.join(folder, _FACTS)):
        facts = decode_json(Path(folder, _FACTS).read_bytes())
    for name, attribute in _COUNTS.items():
        if name in facts:
            setattr(trainable, attribute, facts[name])
    trainable._iterations_since_restore, trainable._time_since_restore = 0, 0.0
    trainable.load_checkpoint(_content(facts, folder))


def _content(facts: dict[str, Any], folder: str) -> object:
    state = facts.get("state")
    if state == _STATE:
        return decode_json(Path(folder, _STATE).read_bytes())
    if state == _PICKLE:
        import pickle  # lazy: see above

        with Path(folder, _PICKLE).open("rb") as file:
            return pickle.load(file)  # noqa: S301 - the trial's own checkpoint, with verified checksums
    return os.path.normpath(os.path.join(folder, facts.get("path", ".")))
