"""Controller: the loop that connects core, journal and executor. The core makes all decisions.

Each turn takes all events, decides, writes once, and then sends commands to the executor: nothing is sent
before it is written, so the journal of a killed head contains everything that was sent.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from windlass.core.clock import Clock, SystemClock
from windlass.core.errors import NotFoundError, PreconditionError, UsageError, WindlassError
from windlass.tune.controller.checkpoint_retention import Deletion
from windlass.tune.controller.core import Core
from windlass.tune.controller.inputs import (
    HEAD_LOST,
    CapacityChanged,
    HeadOpened,
    Input,
    LimitReached,
    SearchEnded,
    UserRequest,
)
from windlass.tune.controller.journal import records
from windlass.tune.controller.journal.replay import Replay
from windlass.tune.controller.journal.stream import no_sweep
from windlass.tune.controller.journal.writer import HeadJournal
from windlass.tune.controller.requests import HeadSignals, read_requests
from windlass.tune.controller.restore import (
    Extension,
    SweepOrigin,
    creation,
    fill_in_metric,
    read_origin,
    sweep_exists,
)
from windlass.tune.controller.settings import Resume, SweepSettings
from windlass.tune.controller.slot_allocation import SlotAllocation
from windlass.tune.controller.state import Command, Drop
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    CanReattach,
    Executor,
    Halt,
    OpeningInterruptedError,
    OpensSlowly,
    SlotJoined,
    SlotLost,
    SlotNoticed,
    StartAttempt,
    TellsCapacity,
    Waits,
    Work,
)
from windlass.tune.folder import SweepFolder
from windlass.tune.schedulers.protocol import SweepScheduler
from windlass.tune.search.protocol import SearchAlgorithm
from windlass.tune.stopper.protocol import Stopper

__all__ = ["Controller", "HeadOutcome"]

_LOOK_EVERY_S = 1.0
_GRACE_S = 60.0
_IDLE_SEARCH_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOutcome:
    """Outcome of running a sweep's controller.

    Attributes:
        why: reason why the sweep ended or was interrupted.
        is_over: False if the sweep was interrupted; it resumes when it is restored.
        failed: the trial that ended the sweep because of `fail_fast`; empty if none did.
    """

    why: str
    is_over: bool
    failed: str = ""


class Controller:
    """Controller of one sweep.

    Call `Controller(...).run()` or, after a crash, `Controller.restore(...).run()`.

    Args:
        settings: the settings of the sweep.
        space: the search space, in the form that the searcher expects.
        searcher, scheduler, stopper: new objects that have not been opened.
        folder: the sweep's folder.
        described: JSON for readers of the journal: `space`, `trainable`, and `stopper` if it has no settings.
        detaches: leave attempts running when this head is interrupted, if the executor can.
        drop: deletes a checkpoint, by path or URL; called in a thread.
        on_turn: called after each turn with this controller; must be quick.

    Attributes:
        core: the state, once the sweep runs; read-only.
        waiting: a sentence saying why no further trial starts; empty if nothing prevents it.
    """

    def __init__(
        self,
        *,
        settings: SweepSettings,
        space: Mapping[str, Any],
        searcher: SearchAlgorithm,
        scheduler: SweepScheduler,
        executor: Executor,
        work: Work,
        folder: Path | str,
        stopper: Stopper | None = None,
        clock: Clock | None = None,
        described: Mapping[str, Any] | None = None,
        detaches: bool = False,
        drop: Callable[[str], None] | None = None,
        on_turn: Callable[[Controller], None] | None = None,
    ) -> None:
        self.settings = settings
        self.folder = SweepFolder(Path(folder))
        self.executor = executor
        self.core: Core
        self.waiting = ""
        self._space = space
        self._searcher, self._scheduler, self._stopper = searcher, scheduler, stopper
        self._work = work
        self._clock = clock or SystemClock()
        self._described = described or {}
        self._detaches = detaches
        self._deletion = Deletion(drop)
        self._on_turn = on_turn
        self._is_restored = False
        self._resume: Resume | None = None
        self._extension: Extension | None = None
        self._signals = HeadSignals()
        self._looked_at = float("-inf")
        self._closing_at: float | None = None
        self._is_detached = False
        self._idle_since: float | None = None

    @classmethod
    def restore(
        cls, *, settings: SweepSettings, resume: Resume | None = None, extend: Extension | None = None, **arguments: Any
    ) -> Controller:
        """Restore the sweep in a folder to exactly where it stopped. Idempotent.

        Args:
            settings: only `resources` is used, and only if it is a function; the journal holds the rest.
            resume: action on finished, unfinished and failed trials; by default unfinished ones resume.
            extend: more samples, a different stopper or different bounds of the space; journalled.
            arguments: as for the class; a new searcher and scheduler with the same type and settings.
        """
        controller = cls(settings=settings, **arguments)
        controller._is_restored = True
        controller._resume, controller._extension = resume, extend
        return controller

    def run(self) -> HeadOutcome:
        """Run the sweep until it ends or this process is asked to stop. Blocks.

        The first SIGINT or SIGTERM lets trials save and leaves the sweep restorable; a second one stops immediately.

        Raises:
            PreconditionError: another head is running it (`in-use`), it already exists (`already-exists`), its
                replay differs from its journal, a trial can never fit, or the disk is full.
            NotFoundError: no sweep to restore (`sweep-not-found`).
            UsageError: the metric is unknown, or a configuration is not JSON.
        """
        if self._is_restored and not self.folder.head_journal.exists():
            raise no_sweep(self.folder)
        self._journal = HeadJournal(self.folder, self._clock)
        try:
            with self._signals:
                self._restore()
                if self.core.ended_why:
                    return self._ending()
                try:
                    with contextlib.suppress(OpeningInterruptedError):
                        self._open()
                        while self._turn():
                            pass
                    return self._ending()
                finally:
                    self._close()
        except Exception as error:
            self._journal.tell(error=error.message if isinstance(error, WindlassError) else repr(error))
            raise
        finally:
            self._journal.close()
            self._deletion.close()
            if self._deletion.problems:
                self._journal.tell(undeleted=list(self._deletion.problems))

    # ------------------------------------------------------------------------------------------------------- opening

    def _restore(self) -> None:
        """Create the core, replay the journal, and record the start of this head."""
        origin = read_origin(self.folder, self.settings)
        if origin is not None and not self._is_restored:
            raise sweep_exists(self.folder)
        if origin is None and self._is_restored:
            raise no_sweep(self.folder)
        extension = self._extension or Extension()
        original = self._begin_with(origin, extension)
        self.core = Core(original, searcher=self._searcher, scheduler=self._scheduler, stopper=self._stopper)
        replay = Replay(self.core)
        collects = gc.isenabled()
        gc.disable()  # a replay creates no garbage, and collecting it would take half of the time
        try:
            for piece in self._journal.read():
                replay.take(piece)
        finally:
            if collects:
                gc.enable()
        replay.finish()
        self._journal.begin()
        self._at = self._journal.now()
        if origin is None:
            facts = creation(original, self._scheduler, self._searcher, self._stopper, self._described)
            self._journal.append(records.SWEEP_CREATED, facts, self._at)
        self._deletion.take(drop.path for drop in replay.drops)
        self._allocation = SlotAllocation(self.core, self.executor, self._journal.now, self._commit)
        self._apply(HeadOpened(number=self.core.num_heads + 1, host=os.uname().nodename, pid=os.getpid()))
        if self._extension is not None:
            facts = {"settings": dict(extension.settings), "space": extension.space, "stopper": extension.stopper}
            self._apply(UserRequest(what="extend", facts=facts))
        if self._resume is not None:
            modes = {name: getattr(self._resume, name) for name in ("finished", "unfinished", "errored")}
            self._apply(UserRequest(what="resume", facts=modes))
        self._commit()
        self._journal.sync(is_urgent=True)

    def _begin_with(self, origin: SweepOrigin | None, extension: Extension) -> SweepSettings:
        """Open the searcher for the sweep in its current form; return the sweep's original settings."""
        original = self.settings
        fill_in_metric(self._scheduler, original.objectives if origin is None else origin.settings.objectives)
        if origin is not None:
            origin.check(self._scheduler, self._searcher)
            original = origin.original
            self.settings = origin.extended(extension)
        self._searcher.open(
            space=self._space,
            objectives=self.settings.objectives,
            seed=self.settings.seed,
            num_samples=self.settings.num_samples,
        )
        return original

    def _open(self) -> None:
        """Open the executor, and reattach or end the attempts of the previous head.

        Raises:
            OpeningInterruptedError: this head was asked to stop meanwhile.
        """
        if hasattr(self.executor, "end_opening_when"):
            cast("OpensSlowly", self.executor).end_opening_when(self._is_asked_to_end)
        self.executor.open(self._work)
        self._at = self._journal.now()
        self._tell_capacity()
        running = {trial: entry.attempt for trial, entry in self.core.state.open_attempts.items()}
        lives: Mapping[str, int] = {}
        if running and hasattr(self.executor, "reattach"):
            lives = cast("CanReattach", self.executor).reattach(running)
        for trial, attempt in running.items():
            if lives.get(trial) == attempt:
                self.core.reports.reattached(trial)
            else:
                error = "its worker ended with the head"
                self._apply(
                    AttemptEnded(trial=trial, attempt=attempt, how=AttemptOutcome.LOST, error=error, kind=HEAD_LOST)
                )
        self._take_requests()  # before any report arrives: a report without the metric would end this head first
        self._commit()
        self._allocation.fill()

    def _is_asked_to_end(self) -> bool:
        """Return whether a signal or a request has asked this head to stop before it is ready."""
        return bool(self._signals.asked) or any(
            asked.what in ("stop-all", "pause") for _, asked in read_requests(self.folder)
        )

    def _tell_capacity(self) -> None:
        if hasattr(self.executor, "capacity"):
            total = dict(cast("TellsCapacity", self.executor).capacity())
            if total != self.core.sweep.capacity:
                self._apply(CapacityChanged(total=total))

    # ------------------------------------------------------------------------------------------------------ the loop

    def _turn(self) -> bool:
        """Take events, decide, write, send commands and fill free slots; return False once nothing is left to do."""
        events = self._poll()
        self._at = self._journal.now()
        for event in events:
            self._apply(event)
        if any(isinstance(event, (SlotJoined, SlotLost, SlotNoticed)) for event in events):
            self._tell_capacity()
        self._look()
        self._commit()
        self._allocation.fill()
        self._end_idle_search(bool(events))
        self._check_stuck(bool(events))
        self._show_waiting()
        if self._on_turn is not None:
            self._on_turn(self)
        return not self._is_over()

    def _poll(self) -> list[Any]:
        """Fetch all events, waiting for the first, but no longer than until the next task is due."""
        left = self._journal.sync()
        timeout_s = min(_LOOK_EVERY_S, left) if left >= 0 else _LOOK_EVERY_S
        if self.core.searcher.learns:
            events = self.executor.poll(0.0)
            if events:
                return events
            self._allocation.ask_ahead()
        return self.executor.poll(timeout_s)

    def _apply(self, event: Input) -> None:
        """Apply an event to the core; if that fails, write the decisions made before it."""
        state = self.core.state
        num_lines, num_commands = len(state.lines), len(state.commands)
        try:
            self.core.apply(event, self._at)
        except BaseException:
            del state.lines[num_lines:], state.commands[num_commands:]
            with contextlib.suppress(PreconditionError):
                self._commit(carries_out=False)
            raise

    def _commit(self, *, carries_out: bool = True) -> None:
        """Write the decisions, then carry them out."""
        lines, commands = self.core.take()
        for kind, data in lines:
            self._journal.append(kind, data, self.core.at)
        self._journal.write()
        if not carries_out:
            return
        if any(_is_final(command) for command in commands):
            self._journal.sync(is_urgent=True)
        for command in commands:
            if isinstance(command, StartAttempt):
                self.executor.start(command)
            elif isinstance(command, Drop):
                self._deletion.take((command.path,))
            else:
                self.executor.send(command)

    def _look(self) -> None:
        """Check limits, signals, and requests from other processes."""
        core = self.core
        why = core.reached or core.meters_exceeded(self._at)
        if why and not core.limit and not core.ended_why:
            self._apply(LimitReached(why=why))
        if self._signals.asked and not core.state.is_closing:
            self._interrupt()
        if self._clock.monotonic() - self._looked_at >= _LOOK_EVERY_S:
            self._take_requests()
        if self._closing_at is None and (core.state.is_closing or core.limit):
            self._closing_at = self._clock.monotonic()
        elif self._closing_at is not None and self._clock.monotonic() - self._closing_at > _GRACE_S:
            for trial, open_attempt in list(core.state.open_attempts.items()):
                why = f"it did not end within {_GRACE_S:g} s"
                self._apply(
                    AttemptEnded(
                        trial=trial, attempt=open_attempt.attempt, how=AttemptOutcome.LOST, error=why, kind=HEAD_LOST
                    )
                )

    def _take_requests(self) -> None:
        """Carry out requests from other processes."""
        self._looked_at = self._clock.monotonic()
        for path, asked in read_requests(self.folder):
            try:
                self._apply(asked)
            except (NotFoundError, UsageError) as slip:  # invalid requests must not end the sweep
                self._journal.tell(refused=str(slip))
            self._commit()
            os.unlink(path)

    def _interrupt(self) -> None:
        if self._detaches and hasattr(self.executor, "detach"):
            self._is_detached = True
        else:
            self._apply(UserRequest(what="pause", facts={"why": f"{self._signals.asked}: the head was told to stop"}))

    def _end_idle_search(self, has_news: bool) -> None:
        """End the search if the searcher suggests nothing although there is no trial left to wait for."""
        core, found = self.core, self._allocation
        if has_news or not found.waits_for_searcher or core.state.open_attempts or core.num_live:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = self._clock.monotonic()
        elif self._clock.monotonic() - self._idle_since >= _IDLE_SEARCH_S:
            why = f"{found.searcher_name} suggested nothing for {_IDLE_SEARCH_S:g} s while no trial was left"
            self._apply(SearchEnded(why=f"{why}, after {found.num_suggested}"))
            self._commit()

    def _check_stuck(self, has_news: bool) -> None:
        core = self.core
        if has_news or not self._allocation.is_stuck or core.ended_why or core.state.open_attempts or not core.num_live:
            return
        raise PreconditionError(
            f"no trial is running, slots are free, and the scheduler {type(core.scheduler).__name__} starts none of the "
            f"{core.num_live} remaining trials",
            hint="`windlass sweep why` shows their last decisions; use a scheduler that resumes what it pauses",
            code="sweep-stuck",
        )

    def _show_waiting(self) -> None:
        why = self._allocation.why
        if why and not self.core.state.open_attempts and hasattr(self.executor, "waiting_for"):
            why = cast("Waits", self.executor).waiting_for() or why
        if why != self.waiting:
            self.waiting = why
            self._journal.tell(waits=why)

    def _is_over(self) -> bool:
        if self._is_detached or self.core.ended_why:
            return True
        return self.core.state.is_closing and not self.core.state.open_attempts

    def _ending(self) -> HeadOutcome:
        core = self.core
        if core.ended_why:
            return HeadOutcome(why=core.ended_why, is_over=True, failed=core.failed)
        return HeadOutcome(why=f"{self._signals.asked or 'a request'}: the head was told to stop", is_over=False)

    def _close(self) -> None:
        self._journal.sync(is_urgent=True)
        if self._is_detached:
            cast("CanReattach", self.executor).detach()
        else:
            self.executor.close()


def _is_final(command: Command) -> bool:
    """Return whether a command is irreversible, so that its reason must be on disk before it is sent."""
    return isinstance(command, (Halt, Drop)) or (isinstance(command, StartAttempt) and bool(command.restore_from))
