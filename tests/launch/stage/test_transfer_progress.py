from __future__ import annotations

from windlass.core.clock import FakeClock
from windlass.launch.stage.transfer_progress import progress_of


def test_a_fetch_is_told_at_its_beginning_now_and_then_and_at_its_end() -> None:
    said: list[str] = []
    clock = FakeClock()
    with progress_of("data `x` from s3://b/x", said.append, clock) as advance:
        for _ in range(12):
            advance(1_000_000)
            clock.advance(2.0)
    assert said == [
        "fetching data `x` from s3://b/x",
        "data `x` from s3://b/x: 6.0 MB, 0.6 MB/s",
        "data `x` from s3://b/x: 11.0 MB, 0.6 MB/s",
        "data `x` from s3://b/x is here: 12.0 MB, 0.5 MB/s",
    ]


def test_what_was_here_is_not_told_of() -> None:
    said: list[str] = []
    with progress_of("data `x`", said.append):
        pass
    assert said == []
