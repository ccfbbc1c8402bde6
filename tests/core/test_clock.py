from __future__ import annotations

import time

from windlass.core.clock import FakeClock, SystemClock, format_time


def test_a_fake_clock_moves_when_told() -> None:
    clock = FakeClock(100.0)
    before = clock.monotonic()
    assert clock.now() == 100.0
    clock.sleep(3600.0)
    clock.advance(0.5)
    assert clock.now() == 3700.5
    assert clock.monotonic() == before + 3600.5


def test_a_jump_of_the_wall_clock_leaves_deadlines_alone() -> None:
    clock = FakeClock(100.0)
    before = clock.monotonic()
    clock.jump(-90.0)
    assert clock.now() == 10.0
    assert clock.monotonic() == before


def test_the_system_clock_is_the_machines() -> None:
    clock = SystemClock()
    before = time.time(), time.monotonic()
    clock.sleep(0.0)
    assert before[0] <= clock.now() <= time.time()
    assert before[1] <= clock.monotonic() <= time.monotonic()


def test_times_are_shown_in_utc() -> None:
    assert format_time(0) == "1970-01-01T00:00:00Z"
    assert format_time(1_700_000_000.9) == "2023-11-14T22:13:20Z"
