"""Signals as events: none is lost, and those of a scheduler come before the ends that they bring about."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from windlass.supervise.fencing.guard import FORWARDED
from windlass.supervise.replica.loop import SignalQueue


@pytest.fixture
def signals() -> Iterator[SignalQueue]:
    before = {number: signal.getsignal(number) for number in (signal.SIGCHLD, *FORWARDED)}
    found = SignalQueue()
    found.listen()
    yield found
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_notice_comes_before_the_ends_of_children(signals: SignalQueue) -> None:
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
        os.kill(os.getpid(), number)
    assert signals.take() == [signal.SIGUSR1, signal.SIGTERM, signal.SIGCHLD]
