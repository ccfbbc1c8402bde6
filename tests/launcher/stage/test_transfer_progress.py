from __future__ import annotations

from windlass.core.clock import FakeClock
from windlass.launcher.stage.transfer_progress import progress_of


def test_a_fetch_is_logged_at_its_start_every_ten_seconds_and_at_its_end() -> None:
    said: list[str] = []
    clock = FakeClock()
    with progress_of("data `x` from s3://b/x", said.append, clock) as advance:
        for _ in range(12):
            advance(1 << 20)
            clock.advance(2.0)
    assert said == [
        "fetching data `x` from s3://b/x",
        "data `x` from s3://b/x: 6.0 MiB, 614.4 KiB/s",
        "data `x` from s3://b/x: 11.0 MiB, 563.2 KiB/s",
        "fetched data `x` from s3://b/x: 12.0 MiB, 512.0 KiB/s",
    ]


def test_nothing_is_logged_when_nothing_is_fetched() -> None:
    said: list[str] = []
    with progress_of("data `x`", said.append):
        pass
    assert said == []
