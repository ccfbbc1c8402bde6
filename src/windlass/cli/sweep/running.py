"""Start of a sweep's head: in this process with the live table, or in a separate process."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from windlass.cli.exit_codes import EXIT_INTERRUPTED
from windlass.cli.screen import emit, emit_json, tell
from windlass.config.override import parse_override
from windlass.core.errors import PreconditionError, UsageError
from windlass.core.units import parse_duration
from windlass.runs.home import Home

if TYPE_CHECKING:
    from windlass.tune.controller.controller import HeadOutcome
    from windlass.tune.controller.restore import Extension
    from windlass.tune.sweep.handle import SweepHandle

__all__ = ["HangUp", "extension_of", "go_on"]

_SIGNAL_WITHIN_S = 1.0
"""Wait this long for SIGHUP, since a write can fail before the signal arrives."""


class HangUp:
    """Context manager that handles SIGHUP, unless it is ignored (`nohup`).

    On SIGHUP the process sends itself SIGTERM, which a sweep's head treats as a request to stop.

    Attributes:
        came: whether the terminal was closed.
    """

    def __init__(self, log: Path) -> None:
        self.came = False
        self._log = log
        self._has_asked = False
        self._had_terminal = any(os.isatty(own) for own in (1, 2))  # false once the terminal is closed
        self._before: Any = signal.SIG_IGN

    def __enter__(self) -> Self:
        self._before = signal.getsignal(signal.SIGHUP)
        if self._before != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before != signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._before)

    def ask(self) -> None:
        """Send SIGTERM to this process if the terminal was closed before a handler was installed. Idempotent."""
        if self.came and not self._has_asked and callable(signal.getsignal(signal.SIGTERM)):
            self._has_asked = True
            signal.raise_signal(signal.SIGTERM)

    def explains(self, error: OSError) -> bool:
        """Return whether a write failed because the terminal was closed. Blocks for up to a second.

        A process that ignores SIGHUP (`nohup`), or that its shell has disowned, gets no signal; its output then goes to
        the file all the same.
        """
        deadline = time.monotonic() + _SIGNAL_WITHIN_S
        while not self.came and error.errno == errno.EIO and time.monotonic() < deadline:
            time.sleep(0.01)
        if not self.came and error.errno == errno.EIO and self._had_terminal:
            self._take(signal.SIGHUP, None)
        return self.came

    def _take(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self.came:
            return
        self.came = True
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        for own in (1, 2):  # a closed terminal fails every write
            os.dup2(descriptor, own)
        os.close(descriptor)
        self.ask()


_SUCH_AS = {"--space": "such as --space 'lr={loguniform: [1e-4, 1e-2]}'", "--stop": "such as --stop accuracy=0.95"}


def go_on(
    handle: SweepHandle,
    home: Home,
    *,
    is_detached: bool,
    is_json: bool,
    in_process: bool = False,
    errored: str = "skip",
    more: Extension | None = None,
) -> int:
    """Start a sweep's head, follow it and return the exit code."""
    extra = _extra(errored, more)
    if handle.has_head:
        raise PreconditionError(
            f"sweep {handle.name} is already running",
            hint=f"windlass sweep show {handle.name} --follow",
            code="in-use",
        )
    if is_detached:
        return _detach(handle, home, extra, is_json=is_json)
    tell(f"{handle.name}  {handle.folder}")
    code = _follow(handle, home, extra, in_process=in_process, is_quiet=is_json)
    if is_json:
        from windlass.cli.render.sweep import sweep_data  # lazy: only with --json

        emit_json("windlass.sweep/1", sweep_data(handle))
    return code


def _extra(errored: str, more: Extension | None) -> dict[str, Any]:
    from windlass.tune.controller.settings import Resume  # lazy: not for a help page

    extra: dict[str, Any] = {}
    if errored != "skip":
        extra["resume"] = Resume(errored=errored)  # type: ignore[arg-type]  # one of the literals
    if more is not None:
        extra["extend"] = more
    return extra


def _detach(handle: SweepHandle, home: Home, extra: dict[str, Any], *, is_json: bool) -> int:
    from windlass.tune.sweep.launching import start_head  # lazy: as above

    where = start_head(handle.folder, home, log=tell, **extra)
    tell(f"{handle.name}  head: {where}")
    if is_json:
        emit_json("windlass.sweep/1", {"name": handle.name, "folder": str(handle.folder), "head": where})
    else:
        emit(handle.name)
        tell(f"  windlass sweep show {handle.name} --follow | windlass sweep stop {handle.name}")
    return 0


def _follow(handle: SweepHandle, home: Home, extra: dict[str, Any], *, in_process: bool, is_quiet: bool) -> int:
    from windlass.tune.sweep.launching import HEAD_LOG, start_head

    if in_process:  # its trials end with this process
        ending = _run_head(handle, home, extra, in_process=True, is_quiet=is_quiet)
    else:
        with HangUp(handle.folder / HEAD_LOG) as terminal:
            ending = _run_head(handle, home, extra, is_quiet=is_quiet, terminal=terminal)
        if terminal.came and (ending is None or not ending.is_over):
            where = start_head(handle.folder, home, log=tell, **extra)
            tell(f"{handle.name}: terminal closed; continues as {where}")
            return 0
    assert ending is not None
    if not ending.is_over:
        tell(f"{handle.name} interrupted: {ending.why}; its runs continue")
        tell(f"  windlass sweep resume {handle.name}")
        return EXIT_INTERRUPTED
    tell(f"{handle.name} finished: {ending.why}")
    tell(f"  windlass sweep best {handle.name} | windlass sweep why {handle.name} TRIAL")
    counts = handle.row.counts
    return 0 if counts.get("TERMINATED") else 1


def _run_head(
    handle: SweepHandle,
    home: Home,
    extra: dict[str, Any],
    *,
    in_process: bool = False,
    is_quiet: bool,
    terminal: HangUp | None = None,
) -> HeadOutcome | None:
    """Run the head in this process.

    Returns None if a closed terminal ended it early; `extra` is cleared once it is in the journal.
    """
    from windlass.tune.sweep.head import make_controller  # lazy: as above
    from windlass.tune.views.head import HeadView
    from windlass.tune.views.live import LiveView

    view = None if is_quiet else HeadView(LiveView())

    def look(controller: Any) -> None:
        extra.clear()  # recorded in the journal
        if terminal is not None:
            terminal.ask()
        if view is not None:
            view.look(controller)

    controller = make_controller(handle.folder, in_process=in_process, home=home, on_turn=look, **extra)
    if terminal is not None and terminal.came:
        return None
    try:
        return controller.run()
    except OSError as error:  # a write to the closed terminal
        if terminal is None or not terminal.explains(error):
            raise
        return None
    finally:
        if view is not None:
            view.close(controller if hasattr(controller, "core") else None)


def extension_of(
    handle: SweepHandle,
    *,
    samples: int | None,
    time_limit: str,
    trials: int | None,
    gpu_hours: float | None,
    stop: Sequence[str] = (),
    space: Sequence[str] = (),
) -> Extension:
    """Return the extension that the options of `sweep extend` describe.

    Raises:
        UsageError: no option given, or an invalid time, bound or space.
    """
    from windlass.tune.sweep.extending import make_extension  # lazy: as above

    settings: dict[str, Any] = {}
    if samples is not None:
        settings["num_samples"] = samples
    if time_limit:
        try:
            settings["time_budget_s"] = parse_duration(time_limit)
        except ValueError as error:
            raise UsageError(f"`--time {time_limit}`: {error}", hint="such as --time 4h", code="usage") from error
    if trials is not None:
        settings["max_trials"] = trials
    if gpu_hours is not None:
        settings["gpu_hours"] = gpu_hours
    if not (settings or stop or space):
        raise UsageError("nothing to extend", hint="windlass sweep extend SWEEP --samples 200", code="missing-argument")
    return make_extension(handle.folder, settings, space=_assigned("--space", space), stop=_assigned("--stop", stop))


def _assigned(option: str, given: Sequence[str]) -> dict[str, Any]:
    """Parse an option's `NAME=VALUE` pairs, with values read as in overrides."""
    for each in given:
        if each[:1] in "-~=" or "=" not in each:
            raise UsageError(f"invalid `{option} {each}`: use NAME=VALUE", hint=_SUCH_AS[option], code="usage")
    return dict(map(parse_override, given))
