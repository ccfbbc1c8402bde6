"""The head of a declared sweep: the process that runs its controller, from what lies in the sweep's folder."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from windlass.core.errors import UsageError
from windlass.plan import Plan
from windlass.runs.home import Home
from windlass.tune.controller.controller import Controller, HeadOutcome
from windlass.tune.controller.request_handler import changed
from windlass.tune.controller.restore import read_origin
from windlass.tune.controller.settings import SweepSettings
from windlass.tune.executors.protocol import Executor
from windlass.tune.executors.runs import RunsExecutor, TrialTemplate, overrides_of, read_trial_template
from windlass.tune.executors.runs.needs import capacity_of, needed
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
from windlass.tune.sweep.trainables import experiment, find_trainable
from windlass.tune.trial import Resources
from windlass.tune.tuner.setup import Setup, make_setup

__all__ = ["make_controller", "run_head", "setup_of"]

Log = Callable[[str], None]


def run_head(folder: Path, *, in_process: bool = False, log: Log = lambda line: None, **more: Any) -> HeadOutcome:
    """Run a sweep to its end from where its journal is; blocks.

    A head that is interrupted leaves runs and slots going, and the next one takes over. Safe to call at any time: only
    one head has the lease.

    Args:
        in_process: run the trials of a `trainable` one by one in this process, for a debugger.
        log: gets progress lines of launches.
        more: as for `Controller.restore`: `extend`, `resume`, `on_turn`.

    Raises:
        WindlassError: something is wrong for the whole sweep; the journal is whole.
    """
    return make_controller(folder, in_process=in_process, log=log, **more).run()


def make_controller(
    folder: Path, *, in_process: bool = False, log: Log = lambda line: None, home: Home | None = None, **more: Any
) -> Controller:
    """The controller of a declared sweep, new or restored; see `run_head`."""
    home = home or Home(folder.parent.parent)
    record, blueprint = read_record(folder), read_trial_template(folder)
    beginning, extend = read_origin(SweepFolder(folder), SweepSettings(name=record.name)), more.get("extend")
    setup = setup_of(as_extended(record, beginning, extend), blueprint, home)
    settings = setup.settings
    if beginning is None:  # no head has come so far: the sweep begins as it is wanted now
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


def setup_of(record: SweepRecord, blueprint: TrialTemplate, home: Home, origins: Origins = NO_ORIGINS) -> Setup:
    """What a controller needs for a declared sweep, read and checked together.

    Raises:
        WindlassError: something of it is wrong, or does not go with something else.
    """
    sweep, folder = record.sweep, sweeps_folder(home) / record.name
    if sweep.trainable:
        _see_code(blueprint)
    trainable = find_trainable(sweep.trainable) if sweep.trainable else experiment
    tuning = declared_tuning(sweep, origins)
    run = declared_run(sweep, record.name, sweeps_folder(home), origins)
    setup = make_setup(trainable, declared_space(sweep, origins), tuning, run)
    num_slots = _num_slots(record, blueprint, setup.space)
    awaited = {"metrics": awaited_metrics(sweep, setup.scheduler)}
    work = dataclasses.replace(setup.work, folder=str(folder), num_slots=num_slots, options=awaited)
    settings = dataclasses.replace(setup.settings, resources=_resources(record, blueprint, home))
    described = {
        "space": dict(sweep.space),
        "trainable": {"type": sweep.trainable or "experiment", "file": record.file, "place": record.place},
    }
    return dataclasses.replace(setup, work=work, settings=settings, described={**setup.described, **described})


def _see_code(blueprint: TrialTemplate) -> None:
    """Let this process import what stands in the experiment's code folder; workers have their run's own checkout."""
    code = str(blueprint.base / str(blueprint.plan.experiment.get("code", ".")))
    if code not in sys.path:
        sys.path.insert(0, code)


def _num_slots(record: SweepRecord, blueprint: TrialTemplate, space: Mapping[str, Any]) -> int:
    """Trials at once: what the sweep says, or what the place holds, and never more than there are trials."""
    sweep, most = record.sweep, capacity_of(blueprint)
    if sweep.num_slots or sweep.samples < 0:
        return sweep.num_slots or most
    return max(1, min(most, sweep.samples * Space(space).grid_size))


def _resources(
    record: SweepRecord, blueprint: TrialTemplate, home: Home
) -> Resources | Callable[[dict[str, Any]], Resources]:
    """What a trial takes: of its own plan where the space changes tasks, else of the experiment's."""
    if record.sweep.trainable or not any(name.startswith("tasks.") for name in record.sweep.space):
        return _shape(blueprint.plan)

    def resources(config: dict[str, Any]) -> Resources:
        return _shape(blueprint.prepared(overrides_of(config), home).plan)

    return resources


def _shape(plan: Plan) -> Resources:
    return Resources(bundles=(needed(plan),))


def _executor(record: SweepRecord, home: Home, *, in_process: bool, log: Log) -> Executor:
    if not record.sweep.trainable:
        if in_process:
            raise UsageError(
                "trials that are runs cannot run in this process",
                hint="name a `trainable` in the sweep, or follow one trial: windlass logs RUN --follow",
                code="sweep-in-process",
            )
        return RunsExecutor(home=home, log=log)
    if in_process:
        from windlass.tune.executors.in_process import InProcess  # lazy: only a debugger wants it

        return InProcess()
    return SlotsExecutor(home=home, log=log)
