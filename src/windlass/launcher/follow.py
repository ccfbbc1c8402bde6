"""Wait for the end of a run, with its log lines as they are written."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from windlass.core.errors import UnreachableError, WaitTimeoutError
from windlass.launcher.remote.refresh import MirrorRefresh
from windlass.record.state import State
from windlass.runs.home import Home
from windlass.runs.logs import LogFollower
from windlass.runs.store import RunFolder

__all__ = ["follow"]

_POLL_S = 0.1
_RECONCILE_EVERY_S = 5.0


def follow(
    run: RunFolder,
    home: Home,
    on_line: Callable[[str, int, str], None] | None = None,
    timeout_s: float | None = None,
) -> State:
    """Block until the run ends and return its state, passing log lines as (task, rank, line).

    Raises:
        WaitTimeoutError: the run did not end within `timeout_s`; it keeps running.
    """
    follower, listening = LogFollower(run), MirrorRefresh(run, home)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause, reconcile_at = 0.01, time.monotonic() + _RECONCILE_EVERY_S
    while True:
        listening.look()
        is_over = run.facts().state.is_terminal
        if is_over:
            listening.look(is_last=True)
        num_lines = 0
        for line in follower.rest() if is_over else follower.poll():
            num_lines += 1
            if on_line is not None:
                on_line(line.task, line.rank, line.text)
        if is_over:
            if any(task.jobs_left for task in run.facts().tasks.values()):
                _reconcile(run, home)
            return run.facts().state
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            raise WaitTimeoutError(
                f"run {run.id} has not ended after {timeout_s:g} s", hint="it is still running", code="timed-out"
            )
        if now >= reconcile_at:
            _reconcile(run, home)
            reconcile_at = now + _RECONCILE_EVERY_S
        pause = 0.01 if num_lines else min(pause * 1.5, _POLL_S)
        time.sleep(pause)


def _reconcile(run: RunFolder, home: Home) -> None:
    """Reconcile the run if its site can be reached; the run continues without it, and a later command does it."""
    from windlass.launcher.reconcile.reconciler import reconcile_run  # lazy: most runs end before it is needed

    with suppress(UnreachableError):
        reconcile_run(run, home)
