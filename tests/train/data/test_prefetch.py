from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from windlass.train.data.loader import Prefetch


def num_threads() -> int:
    return sum(thread.name == "windlass-prefetch" for thread in threading.enumerate())


@pytest.mark.parametrize("depth", [1, 2, 50])
def test_nothing_is_lost_or_out_of_order(depth: int) -> None:
    ahead = Prefetch(iter(range(200)), depth=depth)
    assert [ahead.next() for _ in range(200)] == list(range(200))
    with pytest.raises(StopIteration):
        ahead.next()
    assert num_threads() == 0


def test_it_is_never_further_ahead_than_asked() -> None:
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    ahead = Prefetch(numbers(), depth=3)
    assert ahead.next() == 0
    assert len(made) <= 1 + 3 + 1  # taken, waiting, and one in the hand of the thread
    ahead.close()


def test_a_program_that_ends_without_closing_ends_the_thread_first() -> None:
    program = """
import atexit, itertools, threading
from windlass.train.data.loader import Prefetch
atexit.register(lambda: print([thread.name for thread in threading.enumerate()]))
ahead = Prefetch(itertools.count(1), depth=2)
print(ahead.next())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n['MainThread']\n"


def test_an_error_comes_at_its_place() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        yield 2
        raise RuntimeError("broken")

    ahead = Prefetch(numbers(), depth=5)
    assert [ahead.next(), ahead.next()] == [1, 2]
    with pytest.raises(RuntimeError, match="broken"):
        ahead.next()
    assert num_threads() == 0


def test_close_ends_the_thread_whatever_it_does() -> None:
    for taken in range(4):
        ahead = Prefetch(iter(range(10**9)), depth=2)
        for _ in range(taken):
            ahead.next()
        ahead.close()
        ahead.close()
        assert num_threads() == 0
