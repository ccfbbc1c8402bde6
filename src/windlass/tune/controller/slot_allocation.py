"""Allocation of free slots, first to waiting trials that the scheduler chooses, then to new trials."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Any

from windlass.core.errors import PreconditionError
from windlass.core.phrases import count
from windlass.tune.controller.core import Core
from windlass.tune.controller.inputs import SearchEnded, TrialSuggested
from windlass.tune.executors.protocol import Executor, Fit, Room
from windlass.tune.search.protocol import NoSuggestion, Suggestion
from windlass.tune.trial import Resources, Trial

__all__ = ["SlotAllocation"]

_NUM_LOOKED_AT = 16
_ALL_SUGGESTED = "all samples were suggested"
_AHEAD_SHARE = 0.2


class SlotAllocation:
    """Allocator that starts trials in free slots.

    Args:
        commit: writes the decisions and carries them out.

    Attributes:
        why: reason why no further trial can start; empty if one can.
        is_stuck: whether there was room, but nothing could start.
        waits_for_searcher: whether the searcher had no trial to suggest yet.
    """

    def __init__(self, core: Core, executor: Executor, now: Callable[[], float], commit: Callable[[], None]) -> None:
        self._core = core
        self._executor = executor
        self._now = now
        self._commit = commit
        self._rooms: dict[Resources, Room] = {}
        self._ahead: tuple[int, Suggestion] | None = None
        self._ahead_told = 0
        self._asking_s = 0.0
        self._since = time.monotonic()
        self.why = ""
        self.is_stuck = False
        self.waits_for_searcher = False

    def fill(self) -> None:
        """Start trials until no slot is free or no trial can start."""
        core, at = self._core, self._now()
        self.why, self.is_stuck, self.waits_for_searcher = "", False, False
        self._rooms.clear()
        while not core.state.is_closing and not core.ended_why and self._has_slot():
            num_acts = len(core.state.lines)
            if any(map(self._fits, core.sweep.shapes)) and core.choose(self._fits, at):
                self._commit()
                self._rooms.clear()
            elif len(core.state.lines) > num_acts:  # the scheduler acted: check again once that has taken effect
                self._commit()
                return
            elif not self._may_suggest() or not self._suggest(at):
                has_news = len(core.state.lines) > num_acts  # the search has ended, and the scheduler may act on that
                if not has_news and self._choose_without_new(at):
                    continue
                has_news = len(core.state.lines) > num_acts
                self.is_stuck = not (has_news or core.state.open_attempts) and any(map(self._fits, core.sweep.shapes))
                break
        self._look_ahead(at)
        self._commit()

    def _choose_without_new(self, at: float) -> bool:
        """Let the scheduler start a trial that it has held back, because the searcher has no new one now."""
        core = self._core
        if not (core.sweep.is_searching and any(map(self._fits, core.sweep.shapes))):
            return False
        is_started = core.choose(self._fits, at, is_last=True)
        if is_started:
            self._commit()
            self._rooms.clear()
        return is_started

    def _look_ahead(self, at: float) -> None:
        """Detect early that a searcher that does not learn is exhausted, because some schedulers wait for that."""
        core = self._core
        if core.wants_trials() and not core.searcher.learns and self._peek() is NoSuggestion.FINISHED:
            core.apply(SearchEnded(why=self._why_finished()), at)

    def _why_finished(self) -> str:
        """Return why the search has finished, with the searcher's name if it ended before all samples."""
        core = self._core
        is_early = not 0 <= core.settings.num_samples <= core.next_number
        return f"{self.searcher_name} ended the search after {self.num_suggested}" if is_early else _ALL_SUGGESTED

    @property
    def searcher_name(self) -> str:
        """Class name of the searcher without its wrappers."""
        searcher: Any = self._core.searcher
        while hasattr(searcher, "searcher"):
            searcher = searcher.searcher
        return type(getattr(searcher, "plugin", searcher)).__name__

    @property
    def num_suggested(self) -> str:
        """Progress of the search: `2 of 8 trials`, or `2 trials` if the sweep is unbounded."""
        num, wanted = self._core.next_number, self._core.settings.num_samples
        return count(num, "trial") if wanted < 0 else f"{num} of {count(wanted, 'trial')}"

    def _has_slot(self) -> bool:
        most = self._core.settings.max_concurrent
        if most and len(self._core.state.open_attempts) >= most:
            self.why = f"{most} trials are running, the limit of the sweep"
            return False
        return True

    def _fits(self, resources: Resources) -> bool:
        room = self._rooms.get(resources)
        if room is None:
            room = self._rooms[resources] = self._executor.room(resources)
        if room.fit is Fit.NEVER:
            raise PreconditionError(
                f"a trial needs {_shown(resources)}, which never fits: {room.why}",
                hint="request less per trial, or run the sweep on a larger machine or site",
                code="does-not-fit",
            )
        if room.fit is Fit.LATER:
            self.why = room.why
        return room.fit is Fit.NOW

    def _may_suggest(self) -> bool:
        """Return whether a new trial is needed and no waiting trial could use the slot."""
        core = self._core
        if not core.wants_trials():
            return False
        return not any(self._could_start(trial) for trial in islice(core.sweep.pending.values(), _NUM_LOOKED_AT))

    def _could_start(self, trial: Trial) -> bool:
        is_committed = trial.restore_from is None or bool(trial.restore_from.path)
        return is_committed and trial.id not in self._core.state.open_attempts and self._fits(trial.resources)

    def _suggest(self, at: float) -> bool:
        """Add the searcher's next trial, if there is one and a slot for it; return whether it was added."""
        core, shape = self._core, self._core.settings.resources
        if core.settings.max_trials and core.next_number >= core.settings.max_trials:
            core.apply(SearchEnded(why=f"max_trials is {core.settings.max_trials}"), at)
            return False
        if isinstance(shape, Resources) and not self._fits(shape):
            return False
        found = self._peek()
        if isinstance(found, NoSuggestion):
            if found is NoSuggestion.FINISHED:
                core.apply(SearchEnded(why=self._why_finished()), at)
            else:
                self.why, self.waits_for_searcher = "the searcher waits for results", True
            return False
        resources = shape if isinstance(shape, Resources) else shape(found.config)
        if not self._fits(resources):
            return False
        self._ahead = None
        core.apply(TrialSuggested(suggestion=found, resources=resources), at)
        return True

    def _peek(self) -> Suggestion | NoSuggestion:
        """Return the next suggestion without using it; if the searcher has learned since, request it again."""
        core = self._core
        is_stale = core.searcher.learns and self._ahead_told != core.num_told
        if self._ahead is not None and self._ahead[0] == core.next_number and not is_stale:
            return self._ahead[1]
        found = core.searcher.suggest(core.next_number)
        self._ahead = (core.next_number, found) if isinstance(found, Suggestion) else None
        self._ahead_told = core.num_told
        return found

    def ask_ahead(self) -> None:
        """Let a learning searcher prepare the next trial in idle time, but only for a fraction of the total time."""
        core = self._core
        if not (core.searcher.learns and core.wants_trials() and core.state.open_attempts):
            return
        most = core.settings.max_trials
        is_due = self._asking_s <= _AHEAD_SHARE * (time.monotonic() - self._since)
        if not is_due or (most and core.next_number >= most):
            return
        begin = time.monotonic()
        self._peek()
        self._asking_s += time.monotonic() - begin


def _shown(resources: Resources) -> str:
    return " + ".join(
        ", ".join(f"{amount:g} {name}" for name, amount in bundle.items()) or "nothing" for bundle in resources.bundles
    )
