"""Head of a declared sweep, which runs its controller from the files in the sweep's folder."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from windlass.core.errors import InternalError, NotFoundError, UsageError
from windlass.core.names import nearest
from windlass.plan.plan import Plan
from windlass.runs.home import Home
from windlass.tune.controller.controller import Controller, HeadOutcome
from windlass.tune.controller.requests import changed
from windlass.tune.controller.restore import read_origin
from windlass.tune.controller.settings import SweepSettings
from windlass.tune.executors.local.template_process import IMPORT_LIMIT_S
from windlass.tune.executors.protocol import Executor
from windlass.tune.executors.runs.executor import RunsExecutor
from windlass.tune.executors.runs.trial_template import (
    TrialTemplate,
    capacity_of,
    needed,
    overrides_of,
    read_trial_template,
)
from windlass.tune.executors.slots import SlotsExecutor
from windlass.tune.folder import SweepFolder
from windlass.tune.space import Space
from windlass.tune.sweep.declared import (
    NO_ORIGINS,
    Origins,
    awaited_metrics,
    declared_run,
    declared_space,
    declared_tuning,
)
from windlass.tune.sweep.extending import as_extended
from windlass.tune.sweep.record import SweepRecord, read_record, sweeps_folder
from windlass.tune.trial import Resources
from windlass.tune.tuner.setup import Setup, make_setup

__all__ = ["experiment", "find_trainable", "make_controller", "run_head", "setup_of", "time_limit"]


Log = Callable[[str], None]


def run_head(folder: Path, *, in_process: bool = False, log: Log = lambda line: None, **more: Any) -> HeadOutcome:
    """Run a sweep from the state in its journal to its end. Blocks.

    An interrupted head leaves runs and slots running, and the next head takes them over. It is safe to call this at any
    time, because only one head has the lease.

    Args:
        in_process: run the trials of a `trainable` one at a time in this process, for debuggers.
        log: called with progress lines of launches.
        more: arguments of `Controller.restore`: `extend`, `resume`, `on_turn`.

    Raises:
        WindlassError: an error that concerns the whole sweep; the journal stays intact.
    """
    return make_controller(folder, in_process=in_process, log=log, **more).run()


def make_controller(
    folder: Path, *, in_process: bool = False, log: Log = lambda line: None, home: Home | None = None, **more: Any
) -> Controller:
    """Create the controller for a declared sweep, new or restored; see `run_head`."""
    home = home or Home(folder.parent.parent)
    record, template = read_record(folder), read_trial_template(folder)
    beginning, extend = read_origin(SweepFolder(folder), SweepSettings(name=record.name)), more.get("extend")
    setup = setup_of(as_extended(record, beginning, extend), template, home)
    settings = setup.settings
    if beginning is None:  # no head has run yet: the sweep starts with the current settings
        settings = settings if extend is None else changed(settings, extend.settings)
        more = {name: value for name, value in more.items() if name not in ("extend", "resume")}
    arguments: dict[str, Any] = {
        "settings": settings,
        "space": setup.space,
        "searcher": setup.searcher,
        "scheduler": setup.scheduler,
        "stopper": setup.stopper,
        "executor": _executor(record, home, in_process=in_process, log=log),
        "work": setup.work,
        "folder": folder,
        "described": setup.described,
        "detaches": not in_process,
    }
    if beginning is None:
        return Controller(**arguments, **more)
    return Controller.restore(**arguments, **more)


def setup_of(record: SweepRecord, template: TrialTemplate, home: Home, origins: Origins = NO_ORIGINS) -> Setup:
    """Read and check the setup for a declared sweep.

    Raises:
        WindlassError: a setting is invalid, or two settings conflict.
    """
    sweep, folder = record.sweep, sweeps_folder(home) / record.name
    if sweep.trainable:
        _see_code(template)
    trainable = find_trainable(sweep.trainable) if sweep.trainable else experiment
    tuning = declared_tuning(sweep, origins)
    run = declared_run(sweep, record.name, sweeps_folder(home), origins)
    setup = make_setup(trainable, declared_space(sweep, origins), tuning, run)
    num_slots = _num_slots(record, template, setup.space)
    awaited = {"metrics": awaited_metrics(sweep, setup.scheduler)}
    work = dataclasses.replace(setup.work, folder=str(folder), num_slots=num_slots, options=awaited)
    settings = dataclasses.replace(setup.settings, resources=_resources(record, template, home))
    described = {
        "space": dict(sweep.space),
        "trainable": {"type": sweep.trainable or "experiment", "file": record.file, "place": record.place},
    }
    return dataclasses.replace(setup, work=work, settings=settings, described={**setup.described, **described})


def _see_code(template: TrialTemplate) -> None:
    """Make the experiment's code importable in this process.

    Workers use the checkout of their own run.
    """
    code = str(template.base / str(template.plan.experiment.get("code", ".")))
    if code not in sys.path:
        sys.path.insert(0, code)


def _num_slots(record: SweepRecord, template: TrialTemplate, space: Mapping[str, Any]) -> int:
    """Return the number of slots from the sweep or the site, but at most the number of trials."""
    sweep, most = record.sweep, capacity_of(template)
    if sweep.num_slots or sweep.samples < 0:
        return sweep.num_slots or most
    return max(1, min(most, sweep.samples * Space(space).grid_size))


def _resources(
    record: SweepRecord, template: TrialTemplate, home: Home
) -> Resources | Callable[[dict[str, Any]], Resources]:
    """Return the resources for a trial: from its own plan if the space varies tasks, else from the experiment."""
    if record.sweep.trainable or not any(name.startswith("tasks.") for name in record.sweep.space):
        return _shape(template.plan)

    def resources(config: dict[str, Any]) -> Resources:
        return _shape(template.prepared(overrides_of(config), home).plan)

    return resources


def _shape(plan: Plan) -> Resources:
    return Resources(bundles=(needed(plan),))


def _executor(record: SweepRecord, home: Home, *, in_process: bool, log: Log) -> Executor:
    if not record.sweep.trainable:
        if in_process:
            raise UsageError(
                "trials that are runs cannot run in this process",
                hint="set `trainable` in the sweep, or follow one trial: windlass logs RUN --follow",
                code="sweep-unsupported",
            )
        return RunsExecutor(home=home, log=log)
    if in_process:
        from windlass.tune.executors.in_process import InProcess  # lazy: only debuggers need it

        return InProcess()
    return SlotsExecutor(home=home, log=log)


class _TooLongError(BaseException):
    """Timeout that `except Exception` in an imported module does not catch."""


@contextlib.contextmanager
def time_limit(what: str, limit_s: float = IMPORT_LIMIT_S) -> Iterator[None]:
    """Limit how long an import may take.

    Works only in the main thread, because other threads cannot be interrupted.

    Raises:
        UsageError: it took longer (`user-code-failed`).
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise _TooLongError("".join(traceback.format_stack(frame, 5)))

    before = signal.signal(signal.SIGALRM, end)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    except _TooLongError as late:
        raise UsageError(
            f"importing {what} took longer than {limit_s:g} s; its stack:\n{str(late).rstrip()}",
            hint="move slow work from the module's top level to the function or `setup`",
            code="user-code-failed",
        ) from None
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)


def experiment(config: dict[str, Any]) -> None:
    """Placeholder for the trainable of a sweep whose trials are runs. Never called."""
    raise InternalError(f"a trial that is a run of an experiment cannot be called as a function (with {config})")


def find_trainable(name: str) -> Any:
    """Import the class or function named `MODULE:NAME`.

    Raises:
        NotFoundError: the module or name does not exist (`module-not-found`).
        UsageError: it is neither a class nor a function, or its module is not imported in time.
    """
    module_name, _, path = name.partition(":")
    hint = "its folder must be the experiment's `code`, or it must be installed in its environment"
    try:
        with time_limit(f"the module `{module_name}`"):
            found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise NotFoundError(f"no module `{module_name}`: {error}", hint=hint, code="module-not-found") from error
    for part in path.split("."):
        if not hasattr(found, part):
            close = nearest(part, vars(found))
            hint = f"did you mean `{module_name}:{close}`?" if close else "write `MODULE:NAME`"
            raise NotFoundError(f"`{module_name}` has no `{part}`", hint=hint, code="module-not-found")
        found = getattr(found, part)
    if not callable(found):
        hint = "name a function of the configuration, or a subclass of tune.Trainable"
        raise UsageError(f"`{name}` is neither a class nor a function", hint=hint, code="invalid-trainable")
    return found
