"""Requests from other processes to a sweep's head: numbered files in the sweep's `control/` folder.

A request that is made while no head runs is read by the next one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import FrameType
from typing import Any, Self

from windlass.core.errors import NotFoundError, UsageError
from windlass.core.files import write_json
from windlass.core.json_text import decode_json
from windlass.tune.controller.actions import SweepActions
from windlass.tune.controller.inputs import UserRequest
from windlass.tune.controller.settings import RetentionPolicy, SweepSettings, resources_from_data
from windlass.tune.folder import SweepFolder
from windlass.tune.trial import Trial, TrialStatus

__all__ = ["HeadSignals", "RequestHandler", "ask", "changed", "read_requests"]


def ask(folder: SweepFolder, what: str, **facts: Any) -> None:
    """Send a request to the head: `stop-trial` (trial), `stop-all` or `pause`.

    The head checks for requests every second.
    """
    folder.control.mkdir(parents=True, exist_ok=True)
    name = f"{time.time_ns():020d}-{os.getpid()}.json"
    write_json(folder.control / name, {"what": what, **facts})


def read_requests(folder: SweepFolder) -> list[tuple[str, UserRequest]]:
    """Return pending requests, oldest first, each with its file.

    The file is to be removed once the request is in the journal.

    An invalid file is renamed to `.damaged`, so that it can be inspected; it does not end the sweep.
    """
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder.control)):
            if name.endswith(".json") and not name.startswith("."):
                path = folder.control / name
                asked = _read(path.read_bytes())
                if asked is None:
                    os.replace(path, path.with_suffix(".damaged"))
                else:
                    found.append((str(path), asked))
    return found


def _read(content: bytes) -> UserRequest | None:
    """Read the request in a file; return None if it is invalid."""
    try:
        data = decode_json(content)
        facts = {key: value for key, value in data.items() if key != "what"}
        what = data["what"]
    except (ValueError, KeyError, AttributeError):
        return None
    is_whole = isinstance(what, str) and (what != "stop-trial" or isinstance(facts.get("trial"), str))
    return UserRequest(what=what, facts=facts) if is_whole else None


_ASKS = (signal.SIGINT, signal.SIGTERM)


class HeadSignals:
    """Context manager that catches signals.

    It does nothing outside the main thread, where debuggers run the controller.

    Attributes:
        asked: name of the received signal; empty if none.
    """

    def __init__(self) -> None:
        self.asked = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._take) for number in _ASKS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _take(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name


class RequestHandler:
    """Handler that carries out users' requests on a core."""

    def __init__(self, core: SweepActions) -> None:
        self._core = core
        self._state = core.state

    def take(self, event: UserRequest) -> None:
        """Carry out a request.

        Raises:
            NotFoundError: unknown trial (`sweep-not-found`).
            UsageError: unknown request.
        """
        facts = event.facts
        if event.what == "stop-trial":
            self._core.stop(self._trial(facts["trial"]), facts.get("why") or "a user stopped it")
        elif event.what == "stop-all":
            self._core.limit = facts.get("why") or "a user stopped the sweep"
            for trial in list(self._state.table.live.values()):
                self._core.stop(trial, self._core.limit)
        elif event.what == "pause":
            self.close(facts.get("why") or "the head was ended", saves=True)
        elif event.what == "resume":
            self._resume(facts)
        elif event.what == "extend":
            self._extend(facts)
        else:
            raise UsageError(f"unknown request to a sweep: `{event.what}`", code="unknown-name")

    def close(self, why: str, *, saves: bool) -> None:
        """Stop starting trials, and end those that run in such a way that they can resume later."""
        self._state.is_closing = True
        for trial in list(self._state.table.running.values()):
            open_attempt = self._state.open_attempts.get(trial.id)
            if open_attempt is not None and not open_attempt.is_halted:
                trial.why = why
                self._state.halt(trial, saves=saves)

    def _trial(self, name: str) -> Trial:
        found = self._state.table.trials.get(name)
        if found is None:
            raise NotFoundError(f"this sweep has no trial `{name}`", code="sweep-not-found")
        return found

    def _reopen(self) -> None:
        core = self._core
        core.ended_why = core.failed = core.limit = core.reached = ""

    def _resume(self, facts: Any) -> None:
        """Skip, resume or restart trials depending on how they ended, as Ray Tune's ResumeConfig does."""
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
        """Run a trial again, either from the beginning or from its newest checkpoint."""
        core, state = self._core, self._state
        if not trial.status.is_over:
            core.scheduler.on_remove(core.sweep, trial)
            state.halt(trial, saves=False)
        open_attempt = state.open_attempts.get(trial.id)
        if open_attempt is not None:
            open_attempt.is_old = True
        why = "restarted by request" if is_new else "resumed by request"
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
    """Return the settings changed by an extension.

    Raises:
        UsageError: unknown setting (`sweep-differs`).
    """
    facts = dict(facts)
    for name in facts:
        if name in ("name", "objectives", "seed") or name not in SweepSettings.__slots__:
            raise UsageError(f"a sweep's `{name}` cannot be changed", code="sweep-differs")
    if "keep" in facts:
        facts["keep"] = RetentionPolicy(**facts["keep"])
    if "resources" in facts:
        facts["resources"] = resources_from_data(facts["resources"])
    return replace(settings, **facts)
