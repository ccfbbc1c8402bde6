"""Work that a supervisor's loop does not wait for."""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from windlass.core.process import descendants
from windlass.supervise.chain.background_calls import Answer, ForkedCalls, ImmediateCalls


class Loop:
    """A supervisor's loop: `turn` handles what comes within some time."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.answers: list[Answer] = []
        self.num_again = 0
        self.calls = ForkedCalls(self.selector, self._again)

    def _again(self) -> None:
        self.num_again += 1

    def turn(self, wait_s: float = 10.0) -> None:
        for key, _ in self.selector.select(wait_s):
            key.data()

    def until_back(self) -> None:
        deadline = time.monotonic() + 300
        while self.calls.is_pending and time.monotonic() < deadline:
            self.turn()


@pytest.fixture
def loop() -> Iterator[Loop]:
    found = Loop()
    yield found
    found.calls.settle(0.0)
    found.selector.close()


def _wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _sleep() -> Answer:
    time.sleep(60)
    return {}


def test_at_once_where_nothing_is_slow() -> None:
    answers: list[Answer] = []
    ImmediateCalls().send(lambda: {"a": 1}, answers.append)
    assert answers == [{"a": 1}]


def test_the_answer_comes_through_the_loop(loop: Loop) -> None:
    loop.calls.send(lambda: {"pid": os.getpid()}, loop.answers.append)
    assert (loop.calls.is_pending, loop.answers) == (True, [])
    (helper,) = loop.calls.helpers
    loop.until_back()
    assert (loop.answers, loop.num_again, loop.calls.helpers) == ([{"pid": helper}], 1, set())


def test_a_long_answer_is_whole(loop: Loop) -> None:
    loop.calls.send(lambda: {"a": "x" * 300_000}, loop.answers.append)
    loop.until_back()
    assert len(loop.answers[0]["a"]) == 300_000


def test_sending_does_not_wait(loop: Loop) -> None:
    begin = time.monotonic()
    loop.calls.send(_sleep, loop.answers.append)
    assert loop.calls.is_pending
    assert time.monotonic() < begin + 5


def test_what_takes_too_long_is_given_up_with_all_that_it_started(loop: Loop) -> None:
    def work() -> Answer:
        os.spawnlp(os.P_WAIT, "sleep", "sleep", "60")
        return {}

    loop.calls.send(work, loop.answers.append)
    (helper,) = loop.calls.helpers
    _wait_for(lambda: descendants(helper))
    (program,) = descendants(helper)
    loop.calls.settle(0.0)
    assert (loop.calls.is_pending, loop.answers) == (False, [])
    _wait_for(lambda: not Path(f"/proc/{program}/exe").exists())


def test_what_is_nearly_done_is_waited_for(loop: Loop) -> None:
    def work() -> Answer:
        time.sleep(0.2)
        return {"a": 1}

    loop.calls.send(work, loop.answers.append)
    loop.calls.settle(30.0)
    assert loop.answers == [{"a": 1}]


def test_work_that_is_killed_has_no_answer_and_is_over(loop: Loop) -> None:
    loop.calls.send(_sleep, loop.answers.append)
    os.kill(min(loop.calls.helpers), signal.SIGKILL)
    loop.until_back()
    assert (loop.answers, loop.num_again) == ([], 1)


def test_work_that_raises_has_no_answer(loop: Loop) -> None:
    def work() -> Answer:
        raise ValueError("a bug")

    loop.calls.send(work, loop.answers.append)
    loop.until_back()
    assert loop.answers == []


def test_a_child_that_somebody_else_took_away_is_no_harm(loop: Loop) -> None:
    loop.calls.send(lambda: {"a": 1}, loop.answers.append)
    os.waitpid(min(loop.calls.helpers), 0)
    loop.until_back()
    assert loop.answers == [{"a": 1}]


def test_it_holds_nothing_of_ours_and_hears_no_notice(loop: Loop) -> None:
    reading, writing = os.pipe()

    def work() -> Answer:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGUSR1)
        links = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if int(name) != 3]
        return {"open": [link for link in links if "pipe" in link]}

    loop.calls.send(work, loop.answers.append)
    loop.until_back()
    os.close(reading)
    os.close(writing)
    assert len(loop.answers[0]["open"]) == 1  # for the answer


def test_no_process_to_be_had_is_lost_work(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process() -> int:
        raise BlockingIOError("no process")

    monkeypatch.setattr(os, "fork", no_process)
    loop.calls.send(lambda: {"a": 1}, loop.answers.append)
    assert (loop.calls.is_pending, loop.answers) == (False, [])
