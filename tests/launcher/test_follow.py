"""`Run.logs`, `Run.events` and `Run.wait`: what they yield, when they block and when they end."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.runs.journals import RunScript, home_in
from windlass import Run
from windlass.core.errors import NotFoundError, UnreachableError, WaitTimeoutError
from windlass.launcher import follow
from windlass.record import events
from windlass.record.state import State


class Pauses:
    """Clock of a follower; each pause does the next thing that the run does meanwhile."""

    def __init__(self) -> None:
        self.now = 0.0
        self.then: list[Callable[[], object]] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.then:
            self.then.pop(0)()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    clock = Pauses()
    monkeypatch.setattr(follow, "time", clock)
    return clock


@pytest.fixture
def script(tmp_path: Path) -> RunScript:
    return RunScript(home_in(tmp_path), "exp-abcdefgh").submit().start()


@pytest.fixture
def run(script: RunScript, tmp_path: Path) -> Run:
    return Run(script.run, home_in(tmp_path))


def prints(run: Run, text: str, *, task: str = "train", rank: int = 0, attempt: int = 1) -> None:
    path = run.folder.logs / str(attempt) / task / f"{rank}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a") as file:
        file.write(text)


def test_logs_end_with_what_has_been_printed_so_far(run: Run, pauses: Pauses) -> None:
    prints(run, "one\ntwo\nwithout an end")
    prints(run, "three\n", rank=1)
    prints(run, "four\n", attempt=2)
    found = [(line.attempt, line.task, line.rank, line.text) for line in run.logs()]
    assert found == [
        (1, "train", 0, "one"),
        (1, "train", 0, "two"),
        (1, "train", 1, "three"),
        (2, "train", 0, "four"),
        (1, "train", 0, "without an end"),
    ]
    assert [line.text for line in run.logs("train", rank=1)] == ["three"]
    assert [line.text for line in run.logs(attempt=2)] == ["four"]
    assert pauses.now == 0.0, "it does not wait"


def test_followed_logs_wait_for_lines_and_end_with_the_run(run: Run, script: RunScript, pauses: Pauses) -> None:
    prints(run, "one\n")
    pauses.then = [lambda: prints(run, "two\nha"), lambda: prints(run, "lf\n"), script.end]
    lines = run.logs(follow=True)
    assert next(lines).text == "one"
    assert pauses.now == 0.0
    assert [line.text for line in lines] == ["two", "half"]
    assert run.state is State.SUCCEEDED
    assert [line.text for line in run.logs(follow=True)] == ["one", "two", "half"], (
        "of an ended run: all, without waiting"
    )


def test_the_last_lines_are_those_printed_just_before_the_end(run: Run, script: RunScript, pauses: Pauses) -> None:
    def ends() -> None:
        prints(run, "last words")
        script.end()

    pauses.then = [ends]
    assert [line.text for line in run.logs(follow=True)] == ["last words"]


def test_to_stop_reading_leaves_the_run_alone(run: Run, pauses: Pauses) -> None:
    prints(run, "one\ntwo\n")
    for line in run.logs(follow=True):
        assert line.text == "one"
        break
    assert run.state is State.RUNNING


def test_a_time_limit_ends_the_reading_but_not_the_run(run: Run, pauses: Pauses) -> None:
    prints(run, "one\n")
    lines = run.logs(follow=True, timeout_s=2.5)
    assert next(lines).text == "one"
    with pytest.raises(WaitTimeoutError, match=f"run {run.id} has not ended after 2.5 s"):
        next(lines)
    assert 2.5 <= pauses.now < 3.0
    assert run.state is State.RUNNING
    for read in (run.logs, run.events):
        with pytest.raises(ValueError, match="timeout_s is only for follow=True"):
            read(timeout_s=1.0)


def test_an_unknown_task_is_refused_at_once(run: Run) -> None:
    with pytest.raises(NotFoundError) as caught:
        run.logs("trian", follow=True)
    assert (caught.value.code, caught.value.hint) == ("unknown-task", "did you mean `train`?")


def test_memory_does_not_grow_with_the_log(run: Run) -> None:
    prints(run, ("x" * 99 + "\n") * 200_000)
    tracemalloc.start()
    num_lines = sum(1 for _ in run.logs())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_lines == 200_000
    assert peak < 8 << 20, "of 20 MB"


def test_events_are_sorted_by_time_and_have_no_metrics(run: Run, script: RunScript) -> None:
    script.clock.sleep(5.0)
    script.metric("loss", 1, 0.5)
    script.end()
    found = list(run.events())
    kinds = [events.RUN_CREATED, events.JOB_INTENDED, events.ATTEMPT_STARTED, events.TASK_ENDED]
    assert [event.kind for event in found] == kinds
    assert found[-1].at == found[0].at + 5.0
    assert found[-1].data["verdict"] == "succeeded"


def test_followed_events_end_with_the_run(run: Run, script: RunScript, pauses: Pauses) -> None:
    pauses.then = [lambda: script.metric("loss", 1, 0.5), script.end]
    found = run.events(follow=True)
    assert [next(found).kind for _ in range(3)] == [events.RUN_CREATED, events.JOB_INTENDED, events.ATTEMPT_STARTED]
    assert pauses.now == 0.0
    assert [event.kind for event in found] == [events.TASK_ENDED]


def test_a_followed_run_is_reconciled(
    run: Run, script: RunScript, pauses: Pauses, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconciled: list[float] = []

    def reconcile(*_: object) -> list[str]:
        reconciled.append(pauses.now)
        if len(reconciled) == 1:
            raise UnreachableError("cannot connect to hill", code="site-unreachable")
        script.end()
        return []

    monkeypatch.setattr("windlass.launcher.reconcile.reconciler.reconcile_run", reconcile)
    assert run.wait() is State.SUCCEEDED
    assert [round(at) for at in reconciled] == [5, 10]
