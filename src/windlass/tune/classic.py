"""`tune.run` and `tune.run_experiments`: a sweep in a single call, as in Ray Tune's first interface."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from windlass.core.errors import WindlassError
from windlass.core.phrases import count
from windlass.tune.arguments import check_known
from windlass.tune.errors import BadValueError
from windlass.tune.experiment import Experiment, read_experiments
from windlass.tune.results.analysis import ExperimentAnalysis
from windlass.tune.results.trial_view import TrialView
from windlass.tune.trainable.wrapping import with_resources
from windlass.tune.tuner import Tuner
from windlass.tune.tuner.configs import (
    CheckpointConfig,
    FailureConfig,
    ResumeConfig,
    RunConfig,
    SyncConfig,
    TuneConfig,
)

__all__ = ["TuneError", "run", "run_experiments"]


class TuneError(WindlassError, RuntimeError):
    """Error for `tune.run` if trials have failed."""

    default_code = "trial-failed"


_KNOWN = [
    "name",
    "metric",
    "mode",
    "stop",
    "time_budget_s",
    "config",
    "resources_per_trial",
    "num_samples",
    "storage_path",
    "search_alg",
    "scheduler",
    "checkpoint_config",
    "verbose",
    "progress_reporter",
    "log_to_file",
    "trial_name_creator",
    "trial_dirname_creator",
    "sync_config",
    "max_failures",
    "fail_fast",
    "resume",
    "resume_config",
    "reuse_actors",
    "raise_on_failed_trial",
    "callbacks",
    "max_concurrent_trials",
    "keep_checkpoints_num",
    "checkpoint_score_attr",
    "checkpoint_freq",
    "checkpoint_at_end",
    "local_dir",
    "executor",
    "seed",
]
_REFUSED = {
    "storage_filesystem": "pass a URL: storage_path='s3://bucket/prefix'",
    "export_formats": "write the model in `cleanup`, or report it in a checkpoint",
    "restore": "load it in `setup`, with its path in the configuration",
    "chdir_to_trial_dir": "trials run in the folder where the sweep was started; use tune.get_context().get_trial_dir() for their files",
}


def run(run_or_experiment: Any, **arguments: Any) -> ExperimentAnalysis:
    """Run a sweep to its end. Blocks.

    The arguments are those of Ray Tune's `tune.run`, and must be passed by name.

    Args:
        run_or_experiment: a function, a class, a registered name, or an `Experiment`.
        arguments: `config` is the space; `stop`, `num_samples`, `metric`, `mode`, `scheduler`, `search_alg`,
            `checkpoint_freq`, `checkpoint_at_end`, `resources_per_trial`, `storage_path` (or `local_dir`), `name`,
            `resume`, `max_failures`, `verbose` and others; docs/tune-for-ray-users.md has them all.

    Raises:
        TuneError: a trial failed, unless `raise_on_failed_trial=False`.
        UsageError: an unknown argument, or one that is not supported.
    """
    if isinstance(run_or_experiment, Experiment):
        experiment = run_or_experiment
        arguments = {**arguments, **experiment.settings, "name": experiment.name}
        run_or_experiment = experiment.run
    for name, hint in _REFUSED.items():
        if arguments.pop(name, None) is not None:
            raise BadValueError(f"tune.run(..., {name}=) is not supported", hint=hint, code="unsupported-setting")
    check_known("tune.run", arguments, _KNOWN)
    shape = arguments.get("resources_per_trial")
    trainable = run_or_experiment if shape is None else _shaped(run_or_experiment, shape)
    results = _tuner(trainable, arguments).fit()
    if arguments.get("raise_on_failed_trial", True) and results.num_errors:
        first = results.errors[0]
        message = f"{results.num_errors} of {count(len(results), 'trial')} failed; the first, {first.trial_id}: {first.last_line}"
        raise TuneError(message, hint=f"the results are in {results.experiment_path}") from first
    return ExperimentAnalysis(results.experiment_path, assumed_mode="max")


def run_experiments(experiments: Any, **arguments: Any) -> list[TrialView]:
    """Run experiments one after another, and return all their trials. Blocks.

    Args:
        experiments: an `Experiment`, a list of them, or `{name: {"run": trainable, "stop": ..., ...}}`.
        arguments: of `tune.run`; `concurrent` is accepted: one sweep fills the machine, so they never run at once.
    """
    arguments.pop("concurrent", None)
    return [trial for experiment in read_experiments(experiments) for trial in run(experiment, **arguments).trials]


def _shaped(trainable: Any, shape: Any) -> Any:
    from windlass.tune.registry import resolve_trainable  # lazy: only names need it

    return with_resources(resolve_trainable(trainable), shape)


def _tuner(trainable: Any, arguments: Mapping[str, Any]) -> Tuner:
    search = "metric mode search_alg scheduler num_samples max_concurrent_trials executor time_budget_s seed"
    tuning = TuneConfig(**_present(arguments, f"{search} reuse_actors trial_name_creator trial_dirname_creator"))
    place = _present(arguments, "name storage_path local_dir stop verbose callbacks progress_reporter log_to_file")
    run = RunConfig(
        **place,
        failure_config=FailureConfig(**_present(arguments, "max_failures fail_fast")),
        checkpoint_config=_checkpoints(arguments),
        sync_config=_sync(arguments.get("sync_config")),
    )
    resume = _resume(arguments)
    if resume is not None and run.name is not None:
        from windlass.tune.tuner.setup import place_of  # lazy: only a sweep that is resumed needs it

        folder = newest_of(place_of(run.name, run)[0].path)
        if Tuner.can_restore(folder):
            return Tuner.restore(
                folder,
                trainable,
                param_space=arguments.get("config"),
                resume_config=resume,
                tune_config=tuning,
                run_config=run,
            )
    return Tuner(trainable, param_space=arguments.get("config"), tune_config=tuning, run_config=run)


def _present(arguments: Mapping[str, Any], names: str) -> dict[str, Any]:
    return {name: arguments[name] for name in names.split() if arguments.get(name) is not None}


def _sync(arguments: Any) -> SyncConfig:
    return SyncConfig(**arguments) if isinstance(arguments, Mapping) else arguments or SyncConfig()


def _checkpoints(arguments: Mapping[str, Any]) -> CheckpointConfig:
    """Return `checkpoint_config`, with the old arguments applied.

    Unlike in a Tuner, a trial is saved at its end only on request.
    """
    stated = arguments.get("checkpoint_config")
    config = CheckpointConfig(**stated) if isinstance(stated, Mapping) else copy.copy(stated) or CheckpointConfig()
    attribute = arguments.get("checkpoint_score_attr")
    if attribute:
        config.checkpoint_score_attribute = attribute.removeprefix("min-")
        config.checkpoint_score_order = "min" if attribute.startswith("min-") else "max"
    config.num_to_keep = arguments.get("keep_checkpoints_num") or config.num_to_keep
    config.checkpoint_frequency = arguments.get("checkpoint_freq") or config.checkpoint_frequency
    config.checkpoint_at_end = arguments.get("checkpoint_at_end") or config.checkpoint_at_end or False
    return config


def _resume(arguments: Mapping[str, Any]) -> ResumeConfig | None:
    """Return the options for `resume=` (True, "AUTO" or its variants), or None to start a new sweep."""
    word = arguments.get("resume")
    if arguments.get("resume_config") is not None or word in (None, False):
        stated: ResumeConfig | None = arguments.get("resume_config")
        return stated
    first, *additions = ("AUTO" if word is True else str(word).upper()).split("+")
    known = {
        "ERRORED": {"errored": "resume"},
        "ERRORED_ONLY": {"errored": "resume", "unfinished": "skip"},
        "RESTART_ERRORED": {"errored": "restart"},
        "RESTART_ERRORED_ONLY": {"errored": "restart", "unfinished": "skip"},
    }
    if first not in ("AUTO", "LOCAL") or any(addition not in known for addition in additions):
        hint = f"use True, 'AUTO', or 'AUTO+' and one of {', '.join(known)}"
        raise BadValueError(f"invalid resume={word!r}", hint=hint, code="invalid-value")
    return ResumeConfig(**{key: value for addition in additions for key, value in known[addition].items()})


def newest_of(folder: Path) -> Path:
    """Return the folder of the newest sweep with a name: `digits-3` if there are `digits`, `digits-2` and `digits-3`."""
    found: Sequence[Path] = [folder]
    number = 2
    while Tuner.can_restore(folder.with_name(f"{folder.name}-{number}")):
        found = [folder.with_name(f"{folder.name}-{number}")]
        number += 1
    return found[0]
