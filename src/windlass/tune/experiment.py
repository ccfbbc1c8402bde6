"""`tune.Experiment`: the arguments of one `tune.run` as a value, of which `tune.run_experiments` runs several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.tune.arguments import check_known
from windlass.tune.errors import BadValueError
from windlass.tune.tuner.callback_executor import (
    LiveTrial as Trial,  # what callbacks get, where scripts for Ray Tune import it from
)

__all__ = ["Experiment", "Trial", "read_experiments"]

SETTINGS = (
    "stop",
    "time_budget_s",
    "config",
    "resources_per_trial",
    "num_samples",
    "storage_path",
    "local_dir",
    "sync_config",
    "checkpoint_config",
    "checkpoint_freq",
    "checkpoint_at_end",
    "keep_checkpoints_num",
    "checkpoint_score_attr",
    "trial_name_creator",
    "trial_dirname_creator",
    "log_to_file",
    "max_failures",
    "restore",
)


class Experiment:
    """Trainable with its settings, which are those arguments of `tune.run` that define what runs.

    Attributes:
        name: of the sweep.
        run: a function, a class or a registered name.
        settings: arguments of `tune.run`.
    """

    def __init__(self, name: str, run: Any, **settings: Any) -> None:
        check_known("Experiment", settings, list(SETTINGS))
        self.name = name
        self.run = run
        self.settings = settings

    @classmethod
    def from_json(cls, name: str, spec: Mapping[str, Any]) -> Experiment:
        """Create an experiment from a dictionary with `run` and settings.

        `env` is moved into `config`, where RLlib looks for it.
        """
        if "run" not in spec:
            message = f"experiment {name!r} has no `run`"
            raise BadValueError(message, hint="add 'run': trainable", code="missing-argument")
        settings = {key: value for key, value in spec.items() if key not in ("run", "env")}
        if "env" in spec:
            settings["config"] = {**settings.get("config", {}), "env": spec["env"]}
        return cls(name, spec["run"], **settings)


def read_experiments(experiments: Any) -> list[Experiment]:
    """Return the experiments in an experiment, a list of them, or a dictionary of their dictionary forms by name."""
    if isinstance(experiments, Experiment):
        return [experiments]
    if isinstance(experiments, Mapping):
        return [Experiment.from_json(name, spec) for name, spec in experiments.items()]
    if isinstance(experiments, Sequence) and all(isinstance(one, Experiment) for one in experiments):
        return list(experiments)
    hint = "pass an Experiment, a list of them, or {name: {'run': trainable, ...}}"
    raise BadValueError(f"invalid experiments {experiments!r}", hint=hint, code="invalid-value")
