"""Reporter of this process, and the calls that take only microseconds.

Secrets in reports of user code are redacted before they reach the journal.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.core.errors import UsageError
from windlass.core.names import nearest
from windlass.record import events
from windlass.record.causes import Cause
from windlass.report.channel import Channel
from windlass.report.place import Place, is_inside, read_place
from windlass.report.requests import Requests

if TYPE_CHECKING:
    from windlass.record.redact import Redactor

__all__ = [
    "PHASES",
    "Hiding",
    "Reporter",
    "current",
    "finish",
    "is_active",
    "metrics",
    "place",
    "progress",
    "should_checkpoint",
    "should_stop",
]

_MAX_WAIT_CHARS = 200
PHASES = ("init", "step", "eval", "save", "load")


class Reporter:
    """Reporter of one process, created once from its environment.

    Attributes:
        is_active: whether this process belongs to a windlass job; if not, every call does nothing.
        is_evaluated: whether other tasks evaluate the checkpoints of this one.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.is_active = is_inside(environ)
        self.place = read_place(environ)
        self.has_checkpoints = bool(environ.get("WINDLASS_CHECKPOINTS"))
        self.pattern = environ.get("WINDLASS_CHECKPOINT_PATTERN", "")
        self.is_resuming = environ.get("WINDLASS_RESUME", "1") != "0"
        self.journal = Path(environ["WINDLASS_JOURNAL"]) if self.is_active else None
        control = environ.get("WINDLASS_CONTROL")
        self.requests = Requests(Path(control) if control else None)
        self.channel = Channel(self.journal, f"{self.place.task}.{self.place.rank}") if self.journal else None
        self._hiding = Hiding(environ)
        self._every_s = _seconds(environ.get("WINDLASS_CHECKPOINT_EVERY", ""))
        self._saved_at = time.monotonic()
        self._answered = 0
        self._saving_since: float | None = None
        self._has_cooperated = False
        self.is_evaluated = bool(environ.get("WINDLASS_EVALUATED_BY"))
        self._evaluated_step = int(environ.get("WINDLASS_CHECKPOINT_STEP") or -1)
        self._mark = {"evaluates": True} if "WINDLASS_CHECKPOINT_STEP" in environ else {}
        self._key = {"task": self.place.task, "attempt": self.place.attempt, "rank": self.place.rank}

    def metrics(self, values: Mapping[str, float], step: int | None) -> None:
        """Queue a record of metric values."""
        if self.channel is not None:
            name_of = self._hiding.name
            numbers = {name_of(str(name)): _json_number(value) for name, value in values.items()}
            at = self._evaluated_step if step is None else _step(step)
            self.channel.put(events.METRICS, {**self._key, **self._mark, "step": at, "values": numbers})

    def progress(self, phase: str, step: int | None, waits_for: str = "", waited_s: float = 0.0) -> None:
        """Queue a progress record."""
        self._saving_since = time.monotonic() if phase == "save" else None
        if self.channel is not None:
            facts: dict[str, object] = {**self._key, "phase": phase, "step": _step(step)}
            if waits_for:
                text = self._hiding.text(waits_for[:_MAX_WAIT_CHARS])
                facts.update(waits_for=text, since=round(time.time() - waited_s, 3))
            self.channel.put(events.PROGRESS, facts)

    def should_stop(self) -> bool:
        """Return whether the code should save and exit."""
        if self.channel is not None and not self._has_cooperated:
            self._has_cooperated = True
            self.channel.put(events.COOPERATES, dict(self._key))
        if self.is_active:
            self.requests.listen()
        return self.requests.is_stop_wanted

    def should_checkpoint(self) -> bool:
        """Return whether a save is due or requested."""
        if self._every_s is not None and time.monotonic() - self._saved_at >= self._every_s:
            return True
        return self.requests.checkpoint > self._answered

    def sync(self) -> None:
        """Sync all reports to disk."""
        if self.channel is not None:
            self.channel.sync()

    def saved(self, path: Path | str, step: int, started_at: float) -> None:
        """Record a committed checkpoint durably."""
        since = started_at if self._saving_since is None else min(self._saving_since, started_at)
        now = time.monotonic()
        if self.channel is not None:
            self.channel.write(events.CHECKPOINT, **self._key, path=str(path), step=step, phase_s=round(now - since, 3))
        self._saved_at, self._saving_since = now, None

    def answered(self, request: int) -> None:
        """Mark a request to save as answered; it was received before the save began."""
        self._answered = max(self._answered, request)

    def finish(self, code: int, cause: str, message: str) -> None:
        """Record durably how this process ends, as it reports itself."""
        if self.channel is not None:
            self.channel.write(events.FINISH, **self._key, code=code, cause=cause, message=self._hiding.text(message))

    def abandon(self) -> None:
        """In a forked child, abandon the queue, the file and the signals, which belong to the parent."""
        self.requests.stop_listening()
        if self.channel is not None:
            self.channel.abandon()


_reporter: Reporter | None = None
_hears_forks = False


def current() -> Reporter:
    """Return this process's reporter, which is created on the first call."""
    global _reporter, _hears_forks  # noqa: PLW0603  one process, one reporter
    if _reporter is None:
        _reporter = Reporter(os.environ)
        if not _hears_forks:
            os.register_at_fork(after_in_child=_forget)
            _hears_forks = True
    return _reporter


def _forget() -> None:
    global _reporter  # noqa: PLW0603
    if _reporter is not None:
        _reporter.abandon()
    _reporter = None


def is_active() -> bool:
    """Return whether this process runs in a windlass job."""
    return current().is_active


def place() -> Place:
    """Return this process's run, task, attempt, ranks, folders and deadline, or defaults outside windlass."""
    reporter = current()
    deadline = reporter.requests.deadline
    return reporter.place if deadline is None else replace(reporter.place, deadline=deadline)


def metrics(values: Mapping[str, float], *, step: int | None = None) -> None:
    """Record the current values of metrics: `metrics({"loss": 0.3}, step=100)`; never blocks, never raises.

    In a task that evaluates a checkpoint, the default step is the checkpoint's.
    """
    current().metrics(values, step)


def progress(phase: str = "step", *, step: int | None = None, waits_for: str = "", waited_s: float = 0.0) -> None:
    """Report the current phase, so that a long save does not count as a stall; never blocks.

    Args:
        waits_for: what the code waits for, which `windlass show` prints until the next report; at most 200 characters.
        waited_s: how long it has waited.

    Raises:
        UsageError: `phase` is not init, step, eval, save or load.
    """
    if phase not in PHASES:
        raise UsageError(f"unknown phase {phase!r}", hint=f"one of {', '.join(PHASES)}", code="unknown-name")
    current().progress(phase, step, waits_for, waited_s)


def should_stop() -> bool:
    """Return whether the code should save a checkpoint and exit now.

    The first call also installs handlers that treat SIGTERM and SIGUSR1 as such requests, and shows that this code
    cooperates: the supervisor then waits the full grace period for it. Processes of one gang may see a request at
    slightly different times: call it on one rank and share the answer before a collective operation.
    """
    return current().should_stop()


def should_checkpoint() -> bool:
    """Return whether the code should save now: its `every` has passed since the last save, or a save was requested.

    It stays true until `checkpoint` or `checkpoint_dir` is called in this process. Call it on one rank and share the
    answer.
    """
    return current().should_checkpoint()


def finish(code: int = 0, cause: str = "", message: str = "") -> None:
    """Record durably how this process ends; this outranks the exit code, which launchers such as torchrun turn into 1.

    Args:
        code: the exit code it would have (0 succeeded, 75 stopped and can resume, 93 do not restart).
        cause: one of `windlass.record.causes.Cause`; if empty, it is derived from the code.
        message: one line for the user; secrets in it are redacted.

    Raises:
        UsageError: unknown cause, or cause `ok` with a code other than 0.
        OSError: the journal cannot be written.
    """
    known = [str(item) for item in Cause]
    if cause == Cause.OK and int(code) != 0:
        message = f"cause 'ok' with the code {int(code)}, which is a failure"
        raise UsageError(message, hint="finish(0), or another cause", code="invalid-value")
    if cause != "" and str(cause) not in known:
        closest = nearest(str(cause), known)
        hint = f"did you mean `{closest}`?" if closest else f"one of {', '.join(known)}"
        raise UsageError(f"unknown cause {str(cause)!r}", hint=hint, code="invalid-value")
    current().finish(int(code), str(cause), str(message))


def _step(step: int | None) -> int:
    return -1 if step is None else int(step)


def _seconds(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _json_number(value: Any) -> float | str:
    """Return a number as a float, or as the text `nan`, `inf` or `-inf`, for which JSON has no numbers."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        _complain(value)
        return "nan"
    return number if math.isfinite(number) else str(number)


_complained: dict[str, bool] = {}


def _complain(value: object) -> None:
    kind = type(value).__name__
    if kind not in _complained:
        _complained[kind] = True
        sys.stderr.write(f"windlass: a metric of type {kind} is not a number; recorded as nan: {str(value)[:80]}\n")


_MAX_REMEMBERED = 10_000


class Hiding:
    """Redactor that replaces the secrets in this process's environment with `[secret NAME]`.

    The supervisor passes the names of variables that are secrets (`WINDLASS_SECRET_NAMES`) and of those with the path of
    a secret's file (`WINDLASS_SECRET_FILES`); the process already has the values.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._values = dict(_listed(environ, "WINDLASS_SECRET_NAMES"))
        self._paths = dict(_listed(environ, "WINDLASS_SECRET_FILES"))
        self._redactor: Redactor | None = None
        self._names: dict[str, str] = {}

    def text(self, text: str) -> str:
        """Return `text` with secrets replaced."""
        if not (self._values or self._paths):
            return text
        if self._redactor is None:
            from windlass.record.redact import Redactor  # lazy: only a job with secrets needs it

            self._redactor = Redactor(dict(self._secrets()))
        return self._redactor.redact_text(text)

    def name(self, name: str) -> str:
        """Return a name with secrets replaced, using a cache, since the names of metrics repeat."""
        if not (self._values or self._paths):
            return name
        if name not in self._names:
            if len(self._names) >= _MAX_REMEMBERED:
                self._names.clear()
            self._names[name] = self.text(name)
        return self._names[name]

    def _secrets(self) -> Iterator[tuple[str, bytes]]:
        for name, value in self._values.items():
            yield name, os.fsencode(value)
        for name, path in self._paths.items():
            try:
                yield name, Path(path).read_bytes()
            except OSError:  # gone: the task is over, or the file was meant for another process
                continue


def _listed(environ: Mapping[str, str], variable: str) -> Iterator[tuple[str, str]]:
    for name in environ.get(variable, "").split(","):
        if name in environ:
            yield name, environ[name]
