"""Following a run until it ends: new content is yielded, and the run is reconciled meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import TypeVar

from windlass.core.errors import UnreachableError, WaitTimeoutError
from windlass.launcher.remote.refresh import MirrorRefresh
from windlass.record.state import State
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

__all__ = ["look_until_end", "wait"]

T = TypeVar("T")

_FIRST_PAUSE_S = 0.01
_POLL_S = 0.1
_RECONCILE_EVERY_S = 5.0


def look_until_end(
    run: RunFolder,
    home: Home,
    look: Callable[[bool], Iterable[T]],
    *,
    timeout_s: float | None = None,
    reconcile: Callable[[], object] | None = None,
) -> Iterator[T]:
    """Call `look` repeatedly and yield what it returns, until the run has ended; blocks in between.

    A run at a site is pulled before each look. If the site cannot be reached, the loop continues.

    Args:
        look: called with whether the run has ended; returns what is new.
        reconcile: called every few seconds; by default `reconcile_run`, which may fail to reach the site.

    Raises:
        WaitTimeoutError: the run has not ended within `timeout_s`.
    """
    refresh, act = MirrorRefresh(run, home), reconcile or partial(_reconcile, run, home)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause, reconcile_at = _FIRST_PAUSE_S, time.monotonic() + _RECONCILE_EVERY_S
    while True:
        refresh.look()
        is_over = run.facts().state.is_terminal
        if is_over:
            refresh.look(is_last=True)
        is_moving = False
        for one in look(is_over):
            is_moving = True
            yield one
        now = time.monotonic()
        if is_over:
            if any(task.jobs_left for task in run.facts().tasks.values()):
                act()
            return
        if deadline is not None and now >= deadline:
            raise WaitTimeoutError(
                f"run {run.id} has not ended after {timeout_s:g} s", hint="it is still running", code="timed-out"
            )
        if now >= reconcile_at:
            act()
            reconcile_at = now + _RECONCILE_EVERY_S
        pause = _FIRST_PAUSE_S if is_moving else min(pause * 1.5, _POLL_S)
        time.sleep(pause)


def wait(run: RunFolder, home: Home, timeout_s: float | None = None) -> State:
    """Block until the run has ended, and return its state.

    Raises:
        WaitTimeoutError: the run has not ended within `timeout_s`.
    """
    for _ in look_until_end(run, home, lambda is_over: (), timeout_s=timeout_s):
        pass
    return run.facts().state


def _reconcile(run: RunFolder, home: Home) -> None:
    """Reconcile the run; if its site cannot be reached, leave that to a later command."""
    from windlass.launcher.reconcile.reconciler import reconcile_run  # lazy: most runs end before it is needed

    with suppress(UnreachableError):
        reconcile_run(run, home)
