"""Setup of a sweep: all arguments of a Tuner, read and checked together before anything starts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windlass.tune.controller.settings import RetentionPolicy, SweepSettings
from windlass.tune.errors import BadValueError
from windlass.tune.executors.protocol import Work
from windlass.tune.folder import SweepFolder
from windlass.tune.registry import resolve_trainable
from windlass.tune.schedulers.protocol import SweepScheduler
from windlass.tune.search.protocol import Objectives, SearchAlgorithm
from windlass.tune.space.computed import Computed
from windlass.tune.space.domains import Categorical, Domain
from windlass.tune.space.grammar import describe
from windlass.tune.stopper.protocol import Stopper, stopper_settings
from windlass.tune.stopper.registry import as_stopper, without_timeouts
from windlass.tune.trainable.capabilities import can_save, check_trainable, is_class, name_of
from windlass.tune.trainable.class_api import Trainable
from windlass.tune.trainable.metrics import to_json_value
from windlass.tune.trainable.shape import resource_name, resources_of
from windlass.tune.trainable.wrapping import unwrap
from windlass.tune.trial import Resources
from windlass.tune.tuner.choices import make_scheduler, make_searcher
from windlass.tune.tuner.configs import RunConfig, TuneConfig
from windlass.tune.tuner.objectives import resolve_objectives

__all__ = ["Setup", "default_storage", "make_setup", "place_of", "shape_of", "work_options"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that a controller needs to run a sweep.

    Attributes:
        space: `param_space` as given.
        described: JSON of trainable (with facts for workers), space and stopper, for the journal.
        executor: a name, an object, or None.
        trial_name_creator: returns the names of trials for callbacks.
    """

    settings: SweepSettings
    space: Mapping[str, Any]
    described: Mapping[str, Any]
    searcher: SearchAlgorithm
    scheduler: SweepScheduler
    stopper: Stopper | None
    work: Work
    folder: SweepFolder
    executor: Any = None
    trial_name_creator: Callable[[Any], str] | None = None
    has_dirname_creator: bool = False
    is_detached: bool = False


def make_setup(trainable: Any, param_space: Mapping[str, Any] | None, tuning: TuneConfig, run: RunConfig) -> Setup:
    """Read all arguments of a Tuner.

    Raises:
        WindlassError: an argument is invalid, or two arguments conflict.
    """
    code, shape = unwrap(resolve_trainable(trainable))
    check_trainable(code)
    space = _read_space(param_space)
    scheduler, searcher = make_scheduler(tuning.scheduler), _limited(make_searcher(tuning.search_alg), tuning)
    objectives, half = resolve_objectives(tuning, scheduler, searcher)
    _check_together(code, scheduler, searcher, objectives, run)
    if hasattr(inner := getattr(searcher, "searcher", searcher), "check_options"):
        inner.check_options()
    if run.progress_reporter is not None:
        from windlass.tune.views.reporters import settings_of  # lazy: rarely needed

        settings_of(run.progress_reporter)
    stopper, timeout_s = without_timeouts(as_stopper(run.stop))
    name = run.name or _fresh_name(name_of(code))
    folder, storage = place_of(name, run)
    settings = replace(_settings(name, objectives, tuning, run, code, shape), half=half)
    if timeout_s:
        settings = replace(settings, time_budget_s=min(timeout_s, settings.time_budget_s or timeout_s))
    _check_prices(settings)
    work = Work(
        trainable=code,
        name=name,
        folder=str(folder.path),
        storage=storage,
        checkpoint_every=run.checkpoints.checkpoint_frequency,
        checkpoint_at_end=_saves_at_end(code, run),
        preload=tuple(tuning.preload),
        reuse=tuning.reuse_policy,
        num_slots=tuning.max_concurrent_trials or 0,
        seed=tuning.seed,
        options=work_options(run),
    )
    return Setup(
        settings=settings,
        space=space,
        described=_described(code, space, work, stopper),
        searcher=searcher,
        scheduler=scheduler,
        stopper=stopper,
        work=work,
        folder=folder,
        executor=tuning.executor,
        trial_name_creator=tuning.trial_name_creator,
        has_dirname_creator=tuning.trial_dirname_creator is not None,
        is_detached=tuning.detach,
    )


def _settings(
    name: str, objectives: Objectives, tuning: TuneConfig, run: RunConfig, code: Any, shape: Any
) -> SweepSettings:
    return SweepSettings(
        name=name,
        objectives=objectives,
        num_samples=tuning.num_samples,
        max_concurrent=tuning.max_concurrent_trials or 0,
        max_trials=tuning.max_trials or 0,
        seed=tuning.seed,
        time_budget_s=tuning.budget_s or 0.0,
        gpu_hours=tuning.gpu_hours or 0.0,
        max_cost=tuning.max_cost or 0.0,
        prices={resource_name(name): float(price) for name, price in (tuning.prices or {}).items()},
        max_failures=run.failures.max_failures,
        max_interruptions=run.failures.max_interruptions,
        fail_fast=run.failures.fail_fast,  # type: ignore[arg-type]
        keep=_keep(run),
        resources=shape_of(code, shape),
        saves_at_end=_saves_at_end(code, run),
    )


def _check_prices(settings: SweepSettings) -> None:
    """Check that a limit on cost has a price for at least one of the trials' resources."""
    shape = settings.resources
    if not settings.max_cost or not isinstance(shape, Resources) or shape.total.keys() & settings.prices.keys():
        return
    priced, needed = (", ".join(sorted(names)) for names in (settings.prices, shape.total))
    message = f"max_cost={settings.max_cost:g} is never reached: prices are of {priced}, and trials need {needed}"
    raise BadValueError(message, hint="prices={'GPU': 2.5, 'CPU': 0.04}, per hour", code="invalid-value")


def _described(code: Any, space: Mapping[str, Any], work: Work, stopper: Stopper | None) -> dict[str, Any]:
    """Return the data, besides the settings, from which a sweep can be restored, for the journal."""
    names = ("storage", "checkpoint_every", "checkpoint_at_end", "preload", "reuse", "num_slots")
    kept = {name: getattr(work, name) for name in names} | {"preload": list(work.preload)}
    found: dict[str, Any] = {"trainable": {"type": f"{code.__module__}:{name_of(code)}", **kept}}
    found["space"] = describe(space)
    if stopper is not None:
        found["stopper"] = stopper_settings(stopper)
    return found


def place_of(name: str, run: RunConfig) -> tuple[SweepFolder, str]:
    """Return the sweep's folder, which is always local, and the storage for its checkpoints."""
    stated = str(run.storage_path) if run.storage_path is not None else ""
    if "://" in stated and not stated.startswith("file://"):
        if run.sync_config is not None and run.sync_config.sync_artifacts:
            message = f"sync_artifacts=True is not supported with storage_path={stated!r}"
            hint = "put the files into a checkpoint: checkpoints go to the bucket"
            raise BadValueError(message, hint=hint, code="unsupported-setting")
        return SweepFolder(default_storage() / name), f"{stated.rstrip('/')}/{name}/checkpoints"
    root = Path(stated.removeprefix("file://")).expanduser().absolute() if stated else default_storage()
    folder = SweepFolder(root / name)
    return folder, str(folder.checkpoints)


def default_storage() -> Path:
    """Return the default folder for sweeps, `<WINDLASS_HOME>/sweeps`."""
    from windlass.runs.home import Home  # lazy: only the default needs it

    return Home.default().sweeps


def _fresh_name(name: str) -> str:
    return f"{name}_{dt.datetime.now():%Y-%m-%d_%H-%M-%S}"


def _read_space(param_space: Any) -> Mapping[str, Any]:
    space = param_space.to_dict() if hasattr(param_space, "to_dict") else param_space
    if space is not None and not isinstance(space, Mapping):
        hint = 'write {"lr": tune.loguniform(1e-4, 1e-1)}'
        raise BadValueError(
            f"param_space is a {type(space).__name__}, not a dictionary", hint=hint, code="invalid-value"
        )
    _check_choices(space or {}, ())
    plain: Mapping[str, Any] = _plain(space or {})
    return plain


def _plain(value: Any) -> Any:
    """Convert fixed values that are NumPy or torch scalars to plain numbers."""
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if hasattr(value, "item") and not isinstance(value, (Domain, Computed)):
        return to_json_value(value, "a fixed value", "write a plain number, or pass arrays with tune.with_parameters")
    return value


def _check_choices(space: Any, path: tuple[str, ...]) -> None:
    """Check that the journal can store all choices.

    Fixed values are checked when the space is described.
    """
    if isinstance(space, Mapping):
        for name, value in space.items():
            _check_choices(value, (*path, str(name)))
    elif isinstance(space, Categorical):
        for value in space.categories:
            if isinstance(value, (Mapping, Domain, Computed)):
                _check_choices(value, path)
            else:
                hint = "choose among names, and create the object in the trainable"
                to_json_value(value, f"a choice of `{'/'.join(path)}`", hint)


def _limited(searcher: SearchAlgorithm, tuning: TuneConfig) -> SearchAlgorithm:
    limit = getattr(searcher, "max_concurrent", 0) or 0
    if tuning.max_concurrent_trials and limit and limit != tuning.max_concurrent_trials:
        message = f"max_concurrent_trials={tuning.max_concurrent_trials}, and {type(searcher).__name__} has {limit}"
        hint = "leave out one of the two"
        raise BadValueError(message, hint=hint, code="conflicting-options")
    return searcher


def _check_together(code: Any, scheduler: Any, searcher: Any, objectives: Objectives, run: RunConfig) -> None:
    name = type(scheduler).__name__
    if scheduler.needs_saving and not can_save(code):
        hint = "override save_checkpoint and load_checkpoint"
        raise BadValueError(
            f"{name} pauses trials, but {name_of(code)} cannot save checkpoints", hint=hint, code="invalid-trainable"
        )
    if name != "FIFO":
        from windlass.tune.schedulers.registry import check_pairing  # lazy: FIFO has no constraints

        metric = objectives.metrics[0] if objectives.metrics else None
        check_pairing(scheduler, searcher=type(searcher).__name__, learns=searcher.learns, metric=metric)
    if run.checkpoints.checkpoint_frequency or run.checkpoints.checkpoint_at_end:
        setting = "checkpoint_frequency" if run.checkpoints.checkpoint_frequency else "checkpoint_at_end"
        if not is_class(code):
            hint = "report checkpoints in the function: tune.report(metrics, checkpoint=...)"
            message = f"{setting} is for classes, and {name_of(code)} is a function"
            raise BadValueError(message, hint=hint, code="unsupported-setting")
        if not can_save(code):
            hint = "override save_checkpoint and load_checkpoint"
            raise BadValueError(
                f"{setting} is set, but {name_of(code)} cannot save checkpoints", hint=hint, code="invalid-trainable"
            )


def _saves_at_end(code: Any, run: RunConfig) -> bool:
    stated = run.checkpoints.checkpoint_at_end
    return is_class(code) and can_save(code) if stated is None else stated


def shape_of(code: Any, shape: Any) -> Resources | Callable[[dict[str, Any]], Resources]:
    """Return the resources for each trial, or a function if they depend on the configuration."""

    def resources(config: dict[str, Any]) -> Resources:
        return resources_of(code, shape, config)

    varies = callable(shape) if shape is not None else is_class(code) and _says_resources(code)
    return resources if varies else resources({})


def _says_resources(code: Any) -> bool:
    own, plain = (getattr(kind.default_resource_request, "__func__", None) for kind in (code, Trainable))
    return own is not plain


def work_options(run: RunConfig) -> dict[str, Any]:
    """Return the options that only some executors accept."""
    from windlass.tune import ray  # lazy: the replacement has the name of a library

    limits = ray.limits()
    amounts = {"CPU": limits.num_cpus, "GPU": limits.num_gpus}
    stated = {name: amount for name, amount in amounts.items() if amount is not None}
    return {
        **({"resources": stated} if stated else {}),
        **({"log_to_file": run.log_to_file} if run.log_to_file else {}),
    }


def _keep(run: RunConfig) -> RetentionPolicy:
    config = run.checkpoints
    return RetentionPolicy(
        num_to_keep=config.num_to_keep,
        score_attribute=config.checkpoint_score_attribute or "",
        order=config.checkpoint_score_order,  # type: ignore[arg-type]
    )
