"""Trials as windlass runs of an experiment: on any backend, over any number of nodes, with windlass's own retries below.

A run does not wait while the controller thinks: `credit` has no meaning here, and a STOP is a stop of the run. Runs
live without their controller; another one finds them again by their ids, which follow from trial and attempt.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from windlass.core.errors import PreconditionError, UnreachableError, WindlassError
from windlass.core.files import write_json
from windlass.core.json_text import read_json
from windlass.core.phrases import count
from windlass.launch import Prepared, Run, control
from windlass.launch.start import start_run
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
from windlass.tune.executors.runs.needs import capacity_of
from windlass.tune.executors.runs.overrides import overrides_of
from windlass.tune.executors.runs.seeding import seed
from windlass.tune.executors.runs.trial_template import ensure_blueprint
from windlass.tune.executors.runs.watching import ASKED, Watch
from windlass.tune.trial import Resources

__all__ = ["RunsExecutor"]

TRIAL = "trial.json"
"""Beside the run's other files: which trial of which sweep it is, and what it was started with."""

_AGAIN_S = 10.0
"""How soon a launch is tried again whose place did not answer; the trial waits so long."""
_LOOK_S = 0.05
_LOOK_AT_SITE_S = 1.0
_KEEP_EVERY_S = 5.0


class RunsExecutor:
    """Starts a run per attempt of a trial, and watches its journal.

    Args:
        home: where runs live; the default one.
        prepared: the experiment, for a sweep that was not declared in its file: `windlass.load("exp.yaml")`.
        log: gets progress lines of launches.
        look_every_s: how often journals are looked at; 0: 20 times a second here, once a second at a site.
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
        """Read what the trials are made from, and see what the place holds; nothing is started."""
        self._blueprint = ensure_blueprint(Path(work.folder), self._prepared, work.name)
        self._metrics: tuple[str, ...] = tuple(work.options.get("metrics", ()))
        is_here = self._blueprint.plan.site.profile is None
        self._look_every_s = self._look_every_s or (_LOOK_S if is_here else _LOOK_AT_SITE_S)
        self._capacity = work.num_slots or capacity_of(self._blueprint)
        try:
            self._blueprint.prepared((), self._home)
        except WindlassError as error:
            self._never = error.message
        self._said.append(SlotJoined(slot=self._blueprint.plan.site.name))

    def room(self, resources: Resources) -> Room:
        """Room for one more run within the sweep's concurrency; never where the experiment itself is refused."""
        if self._never:
            return Room(Fit.NEVER, self._never)
        if self._trouble and time.monotonic() < self._launch_at:
            return Room(Fit.LATER, self._trouble)
        num_runs = len(self._watches) + len(self._queue)
        if num_runs >= self._capacity:
            return Room(Fit.LATER, f"{count(num_runs, 'run goes on', 'runs go on')}, as many as the sweep has at once")
        return Room(Fit.NOW)

    def start(self, start: StartAttempt) -> None:
        """Take an attempt over; its run is launched by the next `poll`."""
        self._queue.append(start)

    def send(self, order: Order) -> None:
        """Stop the run of an attempt; a wish to save is answered by the newest checkpoint, or the next."""
        if isinstance(order, Halt):
            self._halt(order)
        elif order.saves:
            watch = self._watch_of(order.trial, order.attempt)
            if watch is not None and watch.checkpoint is not None:
                self._said.append(watch.checkpoint)

    def poll(self, timeout_s: float) -> list[Event]:
        """Launch what waits, one run at a time, and hear what the runs say."""
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
        """What all runs said since the last look; nothing where it is not yet time for the next."""
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

    def reattach(self, held: Mapping[str, int]) -> Mapping[str, int]:
        """Find the runs of another controller's attempts; one whose launch was cut off goes on here."""
        found = {}
        for trial, attempt in held.items():
            run = self._run(trial, attempt)
            if run is None:
                continue
            with suppress(UnreachableError):  # it is asked again while it is watched
                run.reconcile()
            self._watches[trial] = Watch(_start_of(run, trial, attempt), run, self._home, self._metrics)
            found[trial] = attempt
        return found

    def detach(self) -> None:
        """Leave the runs to themselves; they need nobody."""
        self._watches.clear()
        self._queue.clear()

    def waiting_for(self) -> str:
        """Why runs wait, as their place says it."""
        if self._trouble:
            return self._trouble
        reasons = [watch.waits_for for watch in self._watches.values() if watch.waits_for]
        return f"{len(reasons)} of {count(len(self._watches), 'run')} waiting: {reasons[0]}" if reasons else ""

    # --- runs

    def _launch(self, start: StartAttempt) -> list[Event]:
        refusal: WindlassError | None = None
        run = self._run(start.trial, start.attempt)
        if run is None:
            try:
                run = self._new_run(start)
            except WindlassError as error:
                refusal, run = error, self._run(start.trial, start.attempt)  # it may be made all the same, and go on
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
        prepared = self._blueprint.prepared(overrides_of(start.config), self._home, trial=start.trial)
        checkpoint = Path(start.restore_from) if start.restore_from else None
        profile = prepared.plan.site.profile
        if checkpoint is not None and profile is not None and profile.ssh:
            raise PreconditionError(
                f"trial {start.trial} cannot go on from {checkpoint}: that lies at {profile.name}, which is reached over ssh",
                hint=f"launch the sweep on a login node of {profile.name}, or take a scheduler that pauses and clones nothing",
                code="sweep-restore-far",
            )

        def stage_more(folder: RunFolder) -> None:
            if checkpoint is not None:
                seed(folder, checkpoint, prepared.plan.tasks[-1].name)
            write_json(folder.path / TRIAL, {"sweep": self._blueprint.sweep, **to_message(start)}, syncs_folder=False)

        run_id = self._blueprint.run_id(start.trial, start.attempt)
        return Run(start_run(prepared, log=self._log, run_id=run_id, stage_more=stage_more), self._home)

    def _run(self, trial: str, attempt: int) -> Run | None:
        folder = RunFolder(self._home.runs / self._blueprint.run_id(trial, attempt))
        return Run(folder, self._home) if (folder.path / "plan.json").exists() else None

    def _halt(self, order: Halt) -> None:
        for start in list(self._queue):
            if (start.trial, start.attempt) == (order.trial, order.attempt):
                self._queue.remove(start)
                self._said.append(_ended(start, AttemptOutcome.HALTED))
        watch = self._watch_of(order.trial, order.attempt)
        if watch is None or watch.is_halting:
            return
        watch.is_halting = True
        with suppress(UnreachableError):  # the wish is on record, and goes out when the place answers
            control.stop(watch.run.folder, self._home, reason=ASKED, is_checkpoint_wanted=order.saves)

    def _watch_of(self, trial: str, attempt: int) -> Watch | None:
        watch = self._watches.get(trial)
        return watch if watch is not None and watch.start.attempt == attempt else None

    def _keep(self) -> None:
        """Look after one run after another: each every five seconds where they are few, never two in one second."""
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
    """What an attempt was started with, as its run's folder says it."""
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
