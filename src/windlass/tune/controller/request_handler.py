"""What a person may ask of a sweep, and what restoring one may change: journalled, so that a later replay does it too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from windlass.core.errors import NotFoundError, UsageError
from windlass.tune.controller.settings import RetentionPolicy, SweepSettings, resources_from_data
from windlass.tune.trial import Trial, TrialStatus

if TYPE_CHECKING:
    from windlass.tune.controller.core import Core
    from windlass.tune.controller.inputs import UserRequest

__all__ = ["RequestHandler", "changed"]


class RequestHandler:
    """Carries out requests on a core."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._state = core.state

    def take(self, event: UserRequest) -> None:
        """Do what is asked.

        Raises:
            NotFoundError: there is no such trial (`no-such-trial`).
            UsageError: no such request.
        """
        facts = event.facts
        if event.what == "stop-trial":
            self._core.stop(self._trial(facts["trial"]), facts.get("why") or "a person stopped it")
        elif event.what == "stop-all":
            self._core.limit = facts.get("why") or "a person stopped the sweep"
            for trial in list(self._state.table.live.values()):
                self._core.stop(trial, self._core.limit)
        elif event.what == "pause":
            self.close(facts.get("why") or "the head was ended", saves=True)
        elif event.what == "resume":
            self._resume(facts)
        elif event.what == "extend":
            self._extend(facts)
        else:
            raise UsageError(f"a sweep cannot be asked to `{event.what}`", code="unknown-name")

    def close(self, why: str, *, saves: bool) -> None:
        """Let nothing start any more, and end what runs so that it can go on later."""
        self._state.is_closing = True
        for trial in list(self._state.table.running.values()):
            open_attempt = self._state.open_attempts.get(trial.id)
            if open_attempt is not None and not open_attempt.is_halted:
                trial.why = why
                self._state.halt(trial, saves=saves)

    def _trial(self, name: str) -> Trial:
        found = self._state.table.trials.get(name)
        if found is None:
            raise NotFoundError(f"this sweep has no trial `{name}`", code="no-such-trial")
        return found

    def _reopen(self) -> None:
        core = self._core
        core.ended_why = core.failed = core.limit = core.reached = ""

    def _resume(self, facts: Any) -> None:
        """Source: Ray Tune's ResumeConfig: per class of trials skip, resume or restart."""
        self._reopen()
        for trial in list(self._state.table.trials.values()):
            kind = {TrialStatus.TERMINATED: "finished", TrialStatus.ERROR: "errored"}.get(trial.status, "unfinished")
            mode = facts.get(kind, "resume" if kind == "unfinished" else "skip")
            if mode == "skip" and kind == "unfinished":
                self._core.stop(trial, "skipped when the sweep was restored")
            elif mode == "restart":
                self._again(trial, is_new=True)
            elif mode == "resume" and kind != "unfinished":
                self._again(trial, is_new=False)

    def _again(self, trial: Trial, *, is_new: bool) -> None:
        """Let a trial run again: anew, or from its newest checkpoint."""
        core, state = self._core, self._state
        if not trial.status.is_over:
            core.scheduler.on_remove(core.sweep, trial)
            state.halt(trial, saves=False)
        open_attempt = state.open_attempts.get(trial.id)
        if open_attempt is not None:
            open_attempt.is_old = True
        why = "begun anew by request" if is_new else "resumed by request"
        state.acts.append({"act": "restart" if is_new else "requeue", "trial": trial.id, "why": why})
        trial.num_failures = trial.num_interruptions = 0
        trial.error = ""
        if is_new:
            trial.iteration, trial.last, trial.best, trial.checkpoint = 0, None, None, None
        state.table.move(trial, TrialStatus.PENDING, why)
        state.set_restore(trial, trial.checkpoint)
        core.scheduler.on_add(core.sweep, trial)

    def _extend(self, facts: Any) -> None:
        core = self._core
        self._reopen()
        core.search_ended = ""
        core.sweep.is_searching = True
        core.settings = core.state.settings = changed(core.settings, facts["settings"])
        core.state.retention.keep = core.settings.keep


def changed(settings: SweepSettings, facts: Mapping[str, Any]) -> SweepSettings:
    """Settings with some of them changed, as the JSON of an extension says.

    Raises:
        UsageError: there is no such setting (`unknown-setting`).
    """
    facts = dict(facts)
    for name in facts:
        if name in ("name", "objectives", "seed") or name not in SweepSettings.__slots__:
            raise UsageError(f"a sweep's `{name}` cannot be changed", code="unknown-setting")
    if "keep" in facts:
        facts["keep"] = RetentionPolicy(**facts["keep"])
    if "resources" in facts:
        facts["resources"] = resources_from_data(facts["resources"])
    return replace(settings, **facts)
