from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.system.stage import until
from windlass.core.process import descendants, send_signal
from windlass.supervise.replica.process_tree import below, end_all

pytestmark = pytest.mark.system

# grandparent -> parent -> child, each asleep
CHAIN = "import os, time\nfor _ in range(2):\n  if os.fork() != 0: break\ntime.sleep(600)\n"


@pytest.fixture
def chain() -> Iterator[list[int]]:
    """The process numbers of three generations, the eldest first."""
    eldest = subprocess.Popen([sys.executable, "-c", CHAIN])
    until(lambda: len(descendants(eldest.pid)) == 2, "there are three generations")
    pids = [eldest.pid, *descendants(eldest.pid)]
    yield pids
    for pid in pids:
        send_signal(pid, signal.SIGKILL)
    eldest.wait()


def test_the_roots_themselves_are_not_below(chain: list[int]) -> None:
    eldest, parent, child = chain
    assert below([eldest], set()) == [parent, child]
    assert below([eldest, parent], set()) == [child]


def test_what_is_below_a_kept_process_is_kept(chain: list[int]) -> None:
    eldest, parent, _ = chain
    assert below([eldest], {parent}) == []


def test_a_kept_process_above_the_roots_protects_nothing(chain: list[int]) -> None:
    eldest, parent, child = chain
    assert below([parent], {eldest}) == [child]


def test_everything_below_is_ended(chain: list[int]) -> None:
    eldest = chain[0]
    assert end_all([eldest], set) == []
    assert descendants(eldest) == []
