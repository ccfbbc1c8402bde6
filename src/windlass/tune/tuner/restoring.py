"""Restore of a Tuner's sweep from its journal and the caller's code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from windlass.core.errors import UsageError
from windlass.tune.controller.journal.stream import no_sweep
from windlass.tune.controller.restore import Extension, SweepOrigin, read_origin
from windlass.tune.controller.settings import Resume, SweepSettings
from windlass.tune.errors import BadValueError, MismatchError, SpaceError
from windlass.tune.executors.protocol import Work
from windlass.tune.folder import SweepFolder
from windlass.tune.registry import resolve_trainable
from windlass.tune.space.grammar import describe, read_space
from windlass.tune.space.space import check_same_names
from windlass.tune.stopper.protocol import stopper_settings
from windlass.tune.stopper.registry import as_stopper, stopper_from, without_timeouts
from windlass.tune.trainable.capabilities import check_trainable, name_of
from windlass.tune.trainable.wrapping import unwrap
from windlass.tune.tuner.choices import make_scheduler, make_searcher
from windlass.tune.tuner.configs import ResumeConfig, RunConfig, TuneConfig
from windlass.tune.tuner.setup import Setup, default_storage, shape_of, work_options

__all__ = ["folder_at", "make_restored", "restoring"]

_FIELD_OF = {"metrics": "metric", "modes": "mode", "budget_s": "time_budget_s", "reuse_policy": "reuse"}
"""Config property -> field that it reads."""


def folder_at(path: str | Path) -> SweepFolder:
    """Return the folder of the sweep at a path; for a URL, this is the local folder with the journal."""
    text = str(path).removeprefix("file://")
    if "://" in text:
        return SweepFolder(default_storage() / text.rstrip("/").rpartition("/")[2])
    return SweepFolder(Path(text).expanduser().absolute())


def make_restored(
    folder: SweepFolder,
    trainable: Any,
    *,
    param_space: Mapping[str, Any] | None,
    tuning: TuneConfig,
    run: RunConfig,
    is_extended: bool,
) -> Setup:
    """Return the setup for the sweep in a folder.

    Args:
        param_space: the space; None takes it from the journal.
        tuning: its scheduler, search algorithm and executor are used; if None, the journal's are. All other settings
            must match the journal.
        run: its stop condition, callbacks, view and log files are used; all other settings must match the journal.
        is_extended: whether the space may change.

    Raises:
        NotFoundError: the folder holds no sweep (`sweep-not-found`).
        PreconditionError: the sweep has a different trainable or different settings.
        UsageError: a setting that only works for a new sweep (`unsupported-setting`).
    """
    code, shape = unwrap(resolve_trainable(trainable))
    check_trainable(code)
    resources = shape_of(code, shape)
    beginning = read_origin(folder, SweepSettings(name="", resources=resources))
    if beginning is None:
        raise no_sweep(folder)
    created = beginning.created
    _check_same_code(created, code)
    _check_same_settings(beginning, tuning, run)
    stopper, timeout_s = without_timeouts(as_stopper(run.stop))
    if timeout_s and timeout_s != beginning.settings.time_budget_s and not is_extended:
        raise _only_new(f"stop=TimeoutStopper({timeout_s:g})", beginning, beginning.settings.time_budget_s)
    if stopper is None and beginning.stopper is not None:
        stopper = stopper_from(beginning.stopper)
    settings = SweepSettings(
        name=beginning.settings.name,
        objectives=beginning.settings.objectives,
        resources=resources,
        time_budget_s=timeout_s,
    )
    described = {"trainable": created["trainable"], "space": created["space"], "stopper": created.get("stopper")}
    return Setup(
        settings=settings,
        space=_space(beginning, param_space, is_extended=is_extended),
        described=described,
        searcher=_searcher(created, tuning),
        scheduler=_scheduler(created, tuning),
        stopper=stopper,
        work=_work(beginning, code, folder, run),
        folder=folder,
        executor=tuning.executor,
        trial_name_creator=tuning.trial_name_creator,
        is_detached=tuning.detach,
    )


def restoring(
    setup: Setup, resume: ResumeConfig, more: Mapping[str, Any] | None, note: Callable[[str], object]
) -> dict[str, Any]:
    """Return the arguments for `Controller.restore`.

    Args:
        more: an extension: fields of `SweepSettings`, and `space` and `stop` if they change; None for no extension.
        note: called with a sentence if the extension changes nothing and is omitted.
    """
    modes: dict[str, Any] = {name: str(getattr(resume, name)) for name in ("finished", "unfinished", "errored")}
    found: dict[str, Any] = {"resume": None if resume == ResumeConfig() else Resume(**modes)}
    if more is not None:
        settings = {name: value for name, value in more.items() if name not in ("space", "stop")}
        stopper = stopper_settings(setup.stopper) if "stop" in more and setup.stopper is not None else None
        if setup.settings.time_budget_s:  # of a TimeoutStopper
            settings.setdefault("time_budget_s", setup.settings.time_budget_s)
        space = describe(setup.space) if "space" in more else None
        extension = Extension(settings=settings, space=space, stopper=stopper)
        beginning = read_origin(setup.folder, setup.settings)
        unchanged = beginning.unchanged(extension) if beginning is not None else ""
        if unchanged:
            note(unchanged)
        else:
            found["extend"] = extension
    return found


def _check_same_code(created: Mapping[str, Any], code: Any) -> None:
    if "file" in created["trainable"]:
        message = f"the sweep {created['name']} was declared in {created['trainable']['file']}"
        raise MismatchError(message, hint=f"windlass sweep resume {created['name']}", code="sweep-differs")
    ran = str(created["trainable"]["type"]).rpartition(":")[2]
    if ran != name_of(code):
        message = f"the sweep {created['name']} ran the trainable {ran}, not {name_of(code)}"
        raise MismatchError(message, hint=f"restore it with {ran}", code="sweep-differs")


def _check_same_settings(beginning: SweepOrigin, tuning: TuneConfig, run: RunConfig) -> None:
    """Check that no setting would be ignored; settings that are unset or equal are accepted."""
    now, told = beginning.settings, beginning.created["trainable"]
    modes = tuple("max" if is_max else "min" for is_max in now.objectives.is_max)
    keep = now.keep
    has: tuple[tuple[object, str, object], ...] = (
        (tuning, "num_samples", now.num_samples),
        (tuning, "metrics", now.objectives.metrics),
        (tuning, "modes", modes[: len(tuning.modes)]),  # one mode may apply to all metrics
        (tuning, "max_concurrent_trials", now.max_concurrent),
        (tuning, "max_trials", now.max_trials),
        (tuning, "seed", now.seed),
        (tuning, "budget_s", now.time_budget_s),
        (tuning, "gpu_hours", now.gpu_hours),
        (tuning, "max_cost", now.max_cost),
        (tuning, "reuse_policy", told["reuse"]),
        (tuning, "preload", tuple(told["preload"])),
        (run.failures, "max_failures", now.max_failures),
        (run.failures, "max_interruptions", now.max_interruptions),
        (run.failures, "fail_fast", now.fail_fast),
        (run.checkpoints, "num_to_keep", keep.num_to_keep),
        (run.checkpoints, "checkpoint_score_attribute", keep.score_attribute),
        (run.checkpoints, "checkpoint_score_order", keep.order),
        (run.checkpoints, "checkpoint_frequency", told["checkpoint_every"]),
        (run.checkpoints, "checkpoint_at_end", told["checkpoint_at_end"]),
    )
    for config, name, value in has:
        stated = getattr(config, name)
        stated = tuple(stated) if isinstance(stated, list) else stated
        if stated != getattr(type(config)(), name) and (stated or None) != (value or None):
            raise _only_new(f"{_FIELD_OF.get(name, name)}={stated!r}", beginning, value)


def _only_new(setting: str, beginning: SweepOrigin, value: object) -> UsageError:
    return BadValueError(
        f"{setting} only works for a new sweep; {beginning.settings.name} has {value!r}",
        hint="omit it; Tuner.extend changes samples, limits, stop condition and space",
        code="unsupported-setting",
    )


def _space(beginning: SweepOrigin, param_space: Any, *, is_extended: bool) -> Mapping[str, Any]:
    if param_space is None:
        return read_space(beginning.space or {})
    before, now = (json.dumps(space, sort_keys=True) for space in (beginning.space, describe(param_space)))
    if before != now and not is_extended:
        hint = "leave out param_space; to change it, call Tuner.extend"
        raise BadValueError(
            f"the sweep {beginning.created['name']} has a different space", hint=hint, code="sweep-differs"
        )
    if before != now:
        _check_names(beginning, param_space)
    found: Mapping[str, Any] = param_space
    return found


def _check_names(beginning: SweepOrigin, param_space: Any) -> None:
    try:
        old = read_space(beginning.space or {})
    except SpaceError:  # functions that are not in a module must be passed again
        return
    check_same_names(old, param_space)


def _scheduler(created: Mapping[str, Any], tuning: TuneConfig) -> Any:
    if tuning.scheduler is not None or created["scheduler"]["type"] == "FIFO":
        return make_scheduler(tuning.scheduler)
    from windlass.tune.schedulers.registry import from_settings  # lazy: a sweep loads only what it needs

    return from_settings(created["scheduler"])


def _searcher(created: Mapping[str, Any], tuning: TuneConfig) -> Any:
    if tuning.search_alg is not None or created["searcher"] == {"type": "BasicVariantGenerator"}:
        return make_searcher(tuning.search_alg)
    from windlass.tune.search.registry import searcher_from  # lazy: as above

    return searcher_from(created["searcher"])


def _work(beginning: SweepOrigin, code: Any, folder: SweepFolder, run: RunConfig) -> Work:
    facts = dict(beginning.created["trainable"])
    facts.pop("type")
    if "://" not in facts["storage"]:
        facts["storage"] = str(folder.checkpoints)  # the folder may have been moved
    name = beginning.settings.name
    return Work(
        trainable=code,
        name=name,
        folder=str(folder.path),
        seed=beginning.settings.seed,
        options=work_options(run),
        **facts,
    )
