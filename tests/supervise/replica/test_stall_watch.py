from __future__ import annotations

from typing import Any

from windlass.record import events
from windlass.record.frames import Record
from windlass.supervise.fencing.fence import FenceDecision, FenceState
from windlass.supervise.replica.stall_watch import StallWatch


def report(at: float, kind: str = events.METRICS, *, step: int | None = 0, rank: int = 0, attempt: int = 1) -> Record:
    data: dict[str, Any] = {"task": "main", "rank": rank, "attempt": attempt, "step": step, "phase": "eval"}
    return Record(kind=kind, writer="w", seq=1, at=at, data=data)


class Scene:
    """A watch with a floor of a second, of code that made steps a second apart until 10.0."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, float]] = []
        self.watch = StallWatch("main", 0, 1.0, 0.0, lambda step, at: self.steps.append((step, at)))
        for step in range(11):
            self.watch.on_record(report(100.0 + step, step=step), float(step), 1)

    def verdict(self, now: float, decision: FenceDecision | None = None, *, is_stopped: bool = False) -> str:
        return self.watch.verdict(now, decision or FenceDecision(), lambda: None, lambda: is_stopped)


def test_steps_are_heard_and_told_with_the_time_of_their_report() -> None:
    scene = Scene()
    assert scene.steps == [(step, 100.0 + step) for step in range(11)]
    assert scene.verdict(20.0) == ""
    assert scene.verdict(21.0) == "no progress for 11 s in phase step, last step 10"


def test_reports_of_others_do_not_count() -> None:
    scene = Scene()
    scene.watch.on_record(report(0.0, rank=1), 20.0, 1)
    scene.watch.on_record(report(0.0, attempt=2), 20.0, 1)
    scene.watch.on_record(report(0.0, events.NOTE), 20.0, 1)
    assert scene.verdict(21.0) != ""
    scene.watch.on_record(report(0.0, events.CHECKPOINT, step=11), 20.0, 1)
    scene.watch.on_record(report(0.0, events.PROGRESS, step=None), 20.5, 1)
    assert scene.verdict(21.0) == ""
    assert len(scene.steps) == 11


def test_time_that_the_fencing_agent_took_is_forgiven_and_while_it_holds_the_code_nothing_is_said() -> None:
    scene = Scene()
    other = next(state for state in FenceState if state is not FenceState.FREE)
    assert scene.verdict(30.0, FenceDecision(state=other)) == ""
    assert scene.verdict(30.0, FenceDecision(lost_s=15.0)) == ""
    assert scene.verdict(37.0, FenceDecision(lost_s=15.0)) == "no progress for 12 s in phase step, last step 10"


def test_a_stopped_process_is_found_without_reports() -> None:
    watch = StallWatch("main", 0, 60.0, 0.0)
    said = [watch.verdict(now, FenceDecision(), lambda: None, lambda: True) for now in (1.0, 5.0, 6.5)]
    assert said == ["", "", "the process is stopped (SIGSTOP)"]
    assert watch.verdict(7.0, FenceDecision(), lambda: None, lambda: False) == ""
    assert watch.verdict(8.0, FenceDecision(), lambda: None, lambda: True) == ""


def test_what_comes_in_while_the_verdict_is_asked_for_counts() -> None:
    scene = Scene()
    late = report(120.0, step=11)
    assert scene.watch.verdict(21.0, FenceDecision(), lambda: scene.watch.on_record(late, 20.0, 1), lambda: False) == ""


def test_history_is_learned_from_and_silence_counts_from_now_on() -> None:
    watch = StallWatch("main", 0, 1.0, 0.0)
    watch.learn([report(100.0 + 2 * step, step=step) for step in (1, 0, 2, 3)], 1000.0, 1)
    assert watch.verdict(1019.0, FenceDecision(), lambda: None, lambda: False) == ""
    assert watch.verdict(1021.0, FenceDecision(), lambda: None, lambda: False) != ""
    watch.begin()
    assert watch.verdict(5000.0, FenceDecision(), lambda: None, lambda: False) == ""
