"""Executor that runs each trial as a run of an experiment: on any backend, on several nodes, with retries.

A run does not wait for the controller, so `credit` is not used, and a STOP stops the run. Runs continue without their
controller; another controller finds them by their ids, which are derived from trial and attempt.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from windlass.core.errors import NotFoundError, PreconditionError, UnreachableError, WindlassError
from windlass.core.files import write_json
from windlass.core.json_text import read_json
from windlass.core.phrases import count
from windlass.launcher import control
from windlass.launcher.prepare import Prepared
from windlass.launcher.run import Run
from windlass.launcher.start import start_run
from windlass.record.manifest import FOLDER_MANIFEST, manifest_path
from windlass.runs.home import Home
from windlass.runs.store import RunFolder
from windlass.tune.executors.channel import from_message, to_message
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    Event,
    Fit,
    Halt,
    Order,
    Room,
    SlotJoined,
    StartAttempt,
    Work,
)
from windlass.tune.executors.runs.trial_template import capacity_of, ensure_trial_template, overrides_of
from windlass.tune.executors.runs.watching import ASKED, Watch
from windlass.tune.trial import Resources

__all__ = ["RunsExecutor", "seed"]


TRIAL = "trial.json"
"""File in the run's folder with its trial, its sweep and its start order."""

_AGAIN_S = 10.0
"""Delay before a launch is retried after the site could not be reached."""
_LOOK_S = 0.05
_LOOK_AT_SITE_S = 1.0
_KEEP_EVERY_S = 5.0


class RunsExecutor:
    """Executor that starts a run for each attempt of a trial, and follows the run's journal.

    Args:
        home: the windlass home that holds the runs; None for the default.
        prepared: the experiment, for a sweep that was not declared in its file: `windlass.load("exp.yaml")`.
        log: called with progress lines of launches.
        look_every_s: seconds between two reads of journals; 0 means 0.05 s on this machine, 1 s at a site.
    """

    name: ClassVar[str] = "runs"

    def __init__(
        self,
        *,
        home: Home | None = None,
        log: Callable[[str], None] = lambda line: None,
        prepared: Prepared | None = None,
        look_every_s: float = 0.0,
    ) -> None:
        self._home = home or Home.default()
        self._log = log
        self._prepared = prepared
        self._look_every_s = look_every_s
        self._queue: deque[StartAttempt] = deque()
        self._watches: dict[str, Watch] = {}
        self._said: list[Event] = []
        self._never = ""
        self._capacity = 1
        self._trouble = ""
        self._launch_at = 0.0
        self._look_at = 0.0
        self._keep_at = 0.0
        self._kept: deque[str] = deque()

    # --- the protocol

    def open(self, work: Work) -> None:
        """Read the trial template and the site's capacity. Starts nothing."""
        self._template = ensure_trial_template(Path(work.folder), self._prepared, work.name)
        self._metrics: tuple[str, ...] = tuple(work.options.get("metrics", ()))
        is_here = self._template.plan.site.profile is None
        self._look_every_s = self._look_every_s or (_LOOK_S if is_here else _LOOK_AT_SITE_S)
        self._capacity = work.num_slots or capacity_of(self._template)
        try:
            self._template.prepared((), self._home)
        except WindlassError as error:
            self._never = error.message
        self._said.append(SlotJoined(slot=self._template.plan.site.name))

    def room(self, resources: Resources) -> Room:
        """Return whether the sweep's limits allow another run; never if the experiment is invalid."""
        if self._never:
            return Room(Fit.NEVER, self._never)
        if self._trouble and time.monotonic() < self._launch_at:
            return Room(Fit.LATER, self._trouble)
        num_runs = len(self._watches) + len(self._queue)
        if num_runs >= self._capacity:
            return Room(Fit.LATER, f"{count(num_runs, 'run is', 'runs are')} active, the limit of the sweep")
        return Room(Fit.NOW)

    def start(self, start: StartAttempt) -> None:
        """Accept an attempt; the next `poll` launches its run."""
        self._queue.append(start)

    def send(self, order: Order) -> None:
        """Stop the run of an attempt, or answer a save request with the newest checkpoint or the next one."""
        if isinstance(order, Halt):
            self._halt(order)
        elif order.saves:
            watch = self._watch_of(order.trial, order.attempt)
            if watch is not None and watch.checkpoint is not None:
                self._said.append(watch.checkpoint)

    def poll(self, timeout_s: float) -> list[Event]:
        """Launch waiting attempts, one run at a time, and read the events of all runs."""
        deadline = time.monotonic() + timeout_s
        while True:
            found, self._said = self._said, []
            is_launching = bool(self._queue) and time.monotonic() >= self._launch_at
            if is_launching:
                found += self._launch(self._queue.popleft())
            found += self._look()
            self._keep()
            left_s = deadline - time.monotonic()
            if found or is_launching or left_s <= 0:
                return found
            time.sleep(max(0.0, min(self._look_at - time.monotonic(), left_s)))

    def _look(self) -> list[Event]:
        """Return the events of all runs since the last call; none before the next read is due."""
        now = time.monotonic()
        if now < self._look_at:
            return []
        self._look_at = now + self._look_every_s
        found: list[Event] = []
        for trial, watch in list(self._watches.items()):
            news = watch.poll()
            found += news
            if any(isinstance(event, AttemptEnded) for event in news):
                del self._watches[trial]
        return found

    def close(self) -> None:
        """Stop every run at once, without saving."""
        self._queue.clear()
        watches, self._watches = self._watches, {}
        for watch in watches.values():
            with suppress(WindlassError):
                watch.run.stop(now=True)

    def reattach(self, running: Mapping[str, int]) -> Mapping[str, int]:
        """Find the runs of another controller's attempts, and continue launches that were interrupted."""
        found = {}
        for trial, attempt in running.items():
            run = self._template.find_run(trial, attempt, self._home)
            if run is None:
                continue
            with suppress(UnreachableError):  # requested again while it is watched
                run.reconcile()
            self._watches[trial] = Watch(_start_of(run, trial, attempt), run, self._home, self._metrics)
            found[trial] = attempt
        return found

    def detach(self) -> None:
        """Leave the runs running without a controller."""
        self._watches.clear()
        self._queue.clear()

    def waiting_for(self) -> str:
        """Return why runs are waiting, as their site reports it."""
        if self._trouble:
            return self._trouble
        reasons = [watch.waits_for for watch in self._watches.values() if watch.waits_for]
        return f"{len(reasons)} of {count(len(self._watches), 'run')} waiting: {reasons[0]}" if reasons else ""

    # --- runs

    def _launch(self, start: StartAttempt) -> list[Event]:
        refusal: WindlassError | None = None
        run = self._template.find_run(start.trial, start.attempt, self._home)
        if run is None:
            try:
                run = self._new_run(start)
            except WindlassError as error:
                refusal = error
                run = self._template.find_run(start.trial, start.attempt, self._home)  # it may still exist and continue
        if run is None and isinstance(refusal, UnreachableError):
            self._queue.appendleft(start)
            self._launch_at, self._trouble = time.monotonic() + _AGAIN_S, refusal.message
            return []
        self._trouble = ""
        if run is None:
            return [_ended(start, AttemptOutcome.FAILED, refusal)]
        self._watches[start.trial] = Watch(start, run, self._home, self._metrics)
        return []

    def _new_run(self, start: StartAttempt) -> Run:
        prepared = self._template.prepared(overrides_of(start.config), self._home, trial=start.trial)
        checkpoint = Path(start.restore_from) if start.restore_from else None
        profile = prepared.plan.site.profile
        if checkpoint is not None and profile is not None and profile.ssh:
            raise PreconditionError(
                f"trial {start.trial} cannot continue from {checkpoint}: it is at {profile.name}, which is reached over ssh",
                hint=f"launch the sweep on a login node of {profile.name}, or use a scheduler that neither pauses nor clones trials",
                code="sweep-unsupported",
            )

        def stage_more(folder: RunFolder) -> None:
            if checkpoint is not None:
                seed(folder, checkpoint, prepared.plan.tasks[-1].name)
            write_json(folder.path / TRIAL, {"sweep": self._template.sweep, **to_message(start)}, syncs_folder=False)

        run_id = self._template.run_id(start.trial, start.attempt)
        return Run(start_run(prepared, log=self._log, run_id=run_id, stage_more=stage_more), self._home)

    def _halt(self, order: Halt) -> None:
        for start in list(self._queue):
            if (start.trial, start.attempt) == (order.trial, order.attempt):
                self._queue.remove(start)
                self._said.append(_ended(start, AttemptOutcome.HALTED))
        watch = self._watch_of(order.trial, order.attempt)
        if watch is None or watch.is_halting:
            return
        watch.is_halting = True
        with suppress(UnreachableError):  # the request is recorded, and is sent when the site can be reached
            control.stop(watch.run.folder, self._home, reason=ASKED, is_checkpoint_wanted=order.saves)

    def _watch_of(self, trial: str, attempt: int) -> Watch | None:
        watch = self._watches.get(trial)
        return watch if watch is not None and watch.start.attempt == attempt else None

    def _keep(self) -> None:
        """Reconcile one run at a time, each every five seconds, and at most one per second."""
        now = time.monotonic()
        if now < self._keep_at or not self._watches:
            return
        self._keep_at = now + max(1.0, _KEEP_EVERY_S / len(self._watches))
        if not self._kept:
            self._kept.extend(self._watches)
        watch = self._watches.get(self._kept.popleft())
        if watch is not None:
            with suppress(UnreachableError):
                watch.run.reconcile()


def _start_of(run: Run, trial: str, attempt: int) -> StartAttempt:
    """Read the start order of an attempt from the folder of its run."""
    try:
        content = read_json(run.folder.path / TRIAL)
        assert isinstance(content, dict)
        start = from_message({name: value for name, value in content.items() if name != "sweep"})
        assert isinstance(start, StartAttempt)
        return start
    except (OSError, ValueError, AssertionError, KeyError, TypeError):
        return StartAttempt(trial=trial, attempt=attempt, config={}, resources=Resources())


def _ended(start: StartAttempt, how: AttemptOutcome, error: WindlassError | None = None) -> AttemptEnded:
    text = "" if error is None else error.render()
    kind = "" if error is None or how is AttemptOutcome.LOST else type(error).__name__
    return AttemptEnded(trial=start.trial, attempt=start.attempt, how=how, error=text, kind=kind)


_PARTS = "checkpoints"


def seed(run: RunFolder, checkpoint: Path, task: str) -> Path:
    """Link a committed checkpoint into a run that has not started; return its path in the run.

    Files are hard links to the originals, so cloning takes no space and no time; on a different file system they are
    copied. The manifest is written last, as for every checkpoint.

    Args:
        task: task of the checkpoint, unless its path has it (`.../checkpoints/<task>/...`).

    Raises:
        NotFoundError: the checkpoint no longer exists.
    """
    if not checkpoint.exists():
        raise NotFoundError(
            f"missing checkpoint {checkpoint}",
            hint="it was deleted by `keep` of the sweep or by `windlass gc`; restart the trial from the beginning",
            code="no-checkpoint",
        )
    target = run.checkpoints(_task_of(checkpoint) or task) / checkpoint.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if checkpoint.is_dir():
        _link_tree(checkpoint, target)
    else:
        _link(checkpoint, target)
    manifest = manifest_path(checkpoint)
    if manifest.exists():
        _link(manifest, manifest_path(target))
    return target


def _task_of(checkpoint: Path) -> str:
    parts = checkpoint.parts
    at = max((index for index, part in enumerate(parts) if part == _PARTS), default=-1)
    return parts[at + 1] if 0 <= at < len(parts) - 2 else ""


def _link_tree(source: Path, target: Path) -> None:
    for folder, _, files in os.walk(source):
        there = target / os.path.relpath(folder, source)
        there.mkdir(parents=True, exist_ok=True)
        for name in files:
            if name != FOLDER_MANIFEST or Path(folder) != source:
                _link(Path(folder, name), there / name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        return
    except OSError:  # a different file system, or one without links
        shutil.copy2(source, target, follow_symlinks=False)
