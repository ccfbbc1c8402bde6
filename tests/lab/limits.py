"""A test that hangs fails: with the stacks of all threads, and without waiting for whoever reads the log.

First a signal interrupts the test, whose fixtures then take down what they have. A test that does not hear it, since it
waits in C code, or whose fixtures hang as well, ends its process: pytest-xdist names the test and starts another worker.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

__all__ = ["LIMIT_S", "hear", "limited"]

LIMIT_S = 900.0
"""For one phase of a test: set-up, call, take-down. Ten times what the longest takes on two busy cores."""

_errors: list[int] = []


def hear() -> None:
    """Keep standard error as it is now, before pytest captures it: where a process that is ended says its stacks."""
    _errors.append(os.dup(2))


@contextmanager
def limited(what: str, limit_s: float | None = None) -> Iterator[None]:
    """Fail the body when it takes longer than `limit_s`, and end the process when it takes twice as long."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    limit_s = limit_s or LIMIT_S

    def interrupt(number: int, frame: FrameType | None) -> None:
        pytest.fail(f"{what} hangs: it was not over after {limit_s:g} s\n{_stacks()}", pytrace=False)

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    faulthandler.dump_traceback_later(2 * limit_s, exit=True, file=_errors[-1] if _errors else 2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
