"""The fake engine: what its script says happens at the times that it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.post.rollout.policies import group, work
from windlass.core.clock import FakeClock
from windlass.post.rollout.engine import EngineError
from windlass.post.rollout.fake import FakeEngine, Script
from windlass.post.rollout.types import TokenSpan


def test_samples_end_when_the_script_says() -> None:
    clock = FakeClock()
    script = Script(
        num_tokens=lambda item: 2 + item.id.member,
        seconds_per_token=lambda item: 1.0 if item.id.group == 0 else 0.25,
        delay_s=lambda item: 0.5,
    )
    engine, begin_s = FakeEngine(clock, script, num_slots=2), clock.monotonic()
    engine.submit([work(0, 0), work(0, 1), work(1, 0)])
    ends = []
    while samples := engine.poll(100.0):
        ends += [((s.id.group, s.id.member), clock.monotonic() - begin_s, len(s.ids), s.finish) for s in samples]
    assert ends == [((0, 0), 2.5, 2, "stop"), ((0, 1), 3.5, 3, "stop"), ((1, 0), 3.5, 2, "stop")]


def test_poll_without_a_timeout_does_not_advance_the_clock() -> None:
    clock = FakeClock()
    engine, begin_s = FakeEngine(clock), clock.monotonic()
    engine.submit([work(0)])
    assert engine.poll(0) == []
    assert clock.monotonic() == begin_s
    clock.advance(10.0)
    (sample,) = engine.poll(0)
    assert sample.seconds == pytest.approx({"queued": 0.0, "generated": 0.08})


def test_a_timeout_is_waited_for_and_not_exceeded() -> None:
    clock = FakeClock()
    engine, begin_s = FakeEngine(clock, Script(seconds_per_token=lambda item: 1.0)), clock.monotonic()
    engine.submit([work(0)])
    assert engine.poll(2.5) == []
    assert clock.monotonic() - begin_s == pytest.approx(2.5)


def test_a_load_takes_time_and_splits_spans() -> None:
    clock = FakeClock()
    engine = FakeEngine(clock, Script(seconds_per_token=lambda item: 1.0, load_s=4.0), version=3)
    engine.submit([work(0)])
    assert engine.poll(2.5) == []
    engine.load({}, 4, open_work="keep")
    begin_s = clock.monotonic()
    (sample,) = engine.poll(100.0)
    assert clock.monotonic() - begin_s == pytest.approx(5.5)
    assert sample.spans == (
        TokenSpan(start=0, stop=2, version=3, oldest_read=3),
        TokenSpan(start=2, stop=8, version=4, oldest_read=3),
    )


def test_an_engine_that_dies_stays_dead() -> None:
    clock = FakeClock()
    engine = FakeEngine(clock, Script(dies_at_s=clock.monotonic() + 0.05))
    engine.submit(group(0, 2))
    for _ in range(2):
        with pytest.raises(EngineError, match="the fake engine died at") as caught:
            engine.poll(10.0)
        assert caught.value.code == "rollout-engine-failed"
    with pytest.raises(EngineError):
        engine.submit([work(1)])


def test_it_does_not_import_torch() -> None:
    program = "import sys, windlass.post.rollout.fake; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
