"""Head of a Tuner's sweep: from a `Setup` to the sweep's results."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from windlass.tune.controller.controller import Controller, HeadOutcome
from windlass.tune.errors import BadValueError
from windlass.tune.executors.protocol import Executor, Work
from windlass.tune.folder import SweepFolder
from windlass.tune.results.grid import ResultGrid
from windlass.tune.storage import delete
from windlass.tune.tuner.choices import make_executor
from windlass.tune.tuner.configs import RunConfig
from windlass.tune.tuner.setup import Setup

if TYPE_CHECKING:
    from windlass.tune.followers.processes import FollowerProcesses
    from windlass.tune.tuner.callback_executor import CallbackExecutor
    from windlass.tune.views.head import HeadView

__all__ = ["run_head"]

_NO_LOG_FILES = ("in-process", "runs", "slots")
"""Executors whose trials print to this process, or to the logs of their runs."""


def run_head(setup: Setup, run: RunConfig, *, restoring: Mapping[str, Any] | None = None) -> ResultGrid:
    """Run a sweep to its end and return its results. Blocks.

    Args:
        restoring: arguments of `Controller.restore`; None for a new sweep.
    """
    if restoring is None:
        setup = _with_own_folder(setup)
    if setup.has_dirname_creator:
        sys.stderr.write("trial_dirname_creator has no effect: folders of trials are named by their ids\n")
    executor = make_executor(setup.executor)
    _check_honoured(setup, executor)
    companions = _Companions(setup, run)
    watched = _watched(setup, run, companions.callbacks, executor)
    passes = executor if watched is None else cast("Executor", watched)  # its name is an instance attribute
    arguments = {**_arguments(setup, passes), "on_turn": companions.look}
    controller = Controller(**arguments) if restoring is None else Controller.restore(**arguments, **restoring)
    ending = None
    try:
        ending = _drive(executor, controller.run if watched is None else partial(watched.run, controller))
    finally:
        companions.close(controller, is_over=ending is not None and ending.is_over)
    return _results(setup, ending)


def _check_honoured(setup: Setup, executor: Executor) -> None:
    """Check that the executor supports all settings.

    Raises:
        UsageError: it does not (`unsupported-setting`).
    """
    refusals = {
        "detach": setup.is_detached and not hasattr(executor, "detach"),
        "log_to_file": "log_to_file" in setup.work.options and executor.name in _NO_LOG_FILES,
    }
    for name, is_refused in refusals.items():
        if is_refused:
            message = f"the executor {executor.name} does not support {name}"
            raise BadValueError(message, hint=f"omit {name}, or use executor='local'", code="unsupported-setting")


class _Companions:
    """View and follower processes that accompany a head.

    Attributes:
        callbacks: the callbacks that are not followers.
    """

    def __init__(self, setup: Setup, run: RunConfig) -> None:
        self.callbacks: Sequence[Any] = ()
        self._followers: FollowerProcesses | None = None
        self._has_begun = False
        if run.callbacks:
            from windlass.tune.followers.loggers import split_callbacks  # lazy: most sweeps have no callbacks
            from windlass.tune.followers.processes import FollowerProcesses  # lazy: as above

            followers, self.callbacks = split_callbacks(run.callbacks)
            self._followers = FollowerProcesses(setup.folder.path, followers) if followers else None
        self._view = _view(run)

    def look(self, controller: Controller) -> None:
        """Start the followers, and update the view. Called after each turn of the controller."""
        if not self._has_begun:
            self._has_begun = True
            if self._followers is not None:
                self._followers.start()
        if self._view is not None:
            self._view.look(controller)
            for trial, text in controller.executor.notes() if hasattr(controller.executor, "notes") else ():
                self._view.view.note(f"trial {trial}: {text}")

    def close(self, controller: Controller, *, is_over: bool) -> None:
        """Show the final state, and let followers write it."""
        if self._view is not None:
            self._view.close(controller if self._has_begun else None)
        if self._followers is not None:
            for sentence in self._followers.close(is_over=is_over):
                sys.stderr.write(f"{sentence}\n")


def _arguments(setup: Setup, executor: Executor) -> dict[str, Any]:
    return {
        "settings": setup.settings,
        "space": setup.space,
        "searcher": setup.searcher,
        "scheduler": setup.scheduler,
        "stopper": setup.stopper,
        "executor": executor,
        "work": _work(setup),
        "folder": setup.folder.path,
        "described": setup.described,
        "detaches": setup.is_detached,
        "drop": delete,
    }


def _drive(executor: Executor, run: Callable[[], HeadOutcome]) -> HeadOutcome:
    """Run the controller.

    It runs in a thread if trials run in this process and need the caller's thread.
    """
    host: Callable[[Callable[[], HeadOutcome]], HeadOutcome] | None = getattr(executor, "host", None)
    return run() if host is None else host(run)


def _work(setup: Setup) -> Work:
    """Return the data that trials share; for a detached sweep, with options that let workers outlive the head."""
    if not setup.is_detached:
        return setup.work
    return dataclasses.replace(setup.work, options={**setup.work.options, "detach": True})


def _with_own_folder(setup: Setup) -> Setup:
    """Return the setup with an unused folder: `digits`, or else `digits-2`, `digits-3`, ..."""
    path, number = setup.folder.path, 1
    while SweepFolder(path).head_journal.exists():
        number += 1
        path = setup.folder.path.with_name(f"{setup.folder.path.name}-{number}")
    if number == 1:
        return setup
    sys.stderr.write(f"{setup.folder.path} contains an earlier sweep; this one is named {path.name}\n")
    storage = str(SweepFolder(path).checkpoints)
    if "://" in setup.work.storage:  # <url>/<name>/checkpoints
        storage = f"{setup.work.storage.rsplit('/', 2)[0]}/{path.name}/checkpoints"
    work = dataclasses.replace(setup.work, name=path.name, folder=str(path), storage=storage)
    settings = dataclasses.replace(setup.settings, name=path.name)
    described = {**setup.described, "trainable": {**setup.described["trainable"], "storage": storage}}
    return dataclasses.replace(setup, folder=SweepFolder(path), work=work, settings=settings, described=described)


def _watched(setup: Setup, run: RunConfig, callbacks: Sequence[Any], executor: Executor) -> CallbackExecutor | None:
    """Return the executor wrapped for callbacks, or None if there are none."""
    if not callbacks:
        return None
    from windlass.tune.tuner.callback_executor import CallbackExecutor, LiveTrial  # lazy: as above

    name = str(setup.described["trainable"]["type"]).rpartition(":")[2]
    folder = str(setup.folder.path)
    watched = CallbackExecutor(
        executor, callbacks, lambda trial: LiveTrial(trial, name, setup.trial_name_creator, folder)
    )
    samples = setup.settings.num_samples
    watched.set_up(stop=run.stop, num_samples=samples, total_num_samples=samples)
    return watched


def _view(run: RunConfig) -> HeadView | None:
    verbosity = 1 if run.verbose is None else int(run.verbose)
    if verbosity <= 0:
        return None
    from windlass.tune.views.head import HeadView  # lazy: a silent sweep needs none
    from windlass.tune.views.live import LiveView  # lazy: as above
    from windlass.tune.views.reporters import settings_of  # lazy: as above

    return HeadView(LiveView(verbosity=verbosity, settings=settings_of(run.progress_reporter)))


def _results(setup: Setup, ending: HeadOutcome) -> ResultGrid:
    grid = ResultGrid(setup.folder.path)
    if not ending.is_over:
        sys.stderr.write(f"{ending.why}; resume with Tuner.restore({str(setup.folder.path)!r}, ...)\n")
    if ending.failed and setup.settings.fail_fast == "raise":
        raise next(error for error in grid.errors if error.trial_id == ending.failed)
    return grid
