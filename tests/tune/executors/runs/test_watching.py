"""A run's journal as a trial's events; the journal is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass import Run
from windlass.core.clock import SystemClock
from windlass.record import events
from windlass.record.journal import JournalWriter
from windlass.runs.home import Home
from windlass.runs.store import RunFolder, create
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptSaved,
    AttemptStarted,
    Event,
    StartAttempt,
)
from windlass.tune.executors.runs.watching import ASKED, Watch
from windlass.tune.trial import ONE_CPU


class Story:
    """A run whose journal a test writes."""

    def __init__(self, home: Path) -> None:
        self.home = Home(home)
        self.folder: RunFolder = create(self.home, "exp-00000000")
        self.client = JournalWriter(self.folder.journal, "client", SystemClock())
        self.code = JournalWriter(self.folder.journal, "main.0.report", SystemClock())
        task = {"after": [], "replicas": 1, "interrupted": 50, "failed": 0}
        self.client.append(
            events.RUN_CREATED, run=self.folder.id, name="exp", why="", plan_hash="", tasks={"main": task}
        )
        self.client.append(events.JOB_INTENDED, task="main", job=1, token="t", backend="local", resets_budgets=True)

    def watch(self, *metrics: str, iteration: int = 0) -> Watch:
        start = StartAttempt(
            trial="00003", attempt=2, config={}, resources=ONE_CPU, iteration=iteration, time_total_s=5.0
        )
        return Watch(start, Run(self.folder, self.home), self.home, metrics)

    def begin(self, attempt: int = 1) -> None:
        self.client.append(
            events.ATTEMPT_STARTED, task="main", job=1, attempt=attempt, epoch=1, leader=0, address="", port=0
        )
        self.client.append(
            events.PROCESS_STARTED, task="main", attempt=attempt, rank=0, host="n1", process="77:5", argv=[]
        )

    def metrics(self, step: int = -1, rank: int = 0, **values: Any) -> None:
        self.code.append(events.METRICS, task="main", attempt=1, rank=rank, step=step, values=values)

    def save(self, step: int) -> None:
        self.code.append(events.CHECKPOINT, task="main", attempt=1, rank=0, path=f"/c/step-{step}", step=step)

    def end(self, verdict: str, cause: str, **end: Any) -> None:
        self.client.append(
            events.ATTEMPT_ENDED, task="main", job=1, attempt=1, epoch=1, end={"cause": cause, "code": 1, **end}
        )
        self.client.append(
            events.TASK_ENDED, task="main", job=1, attempt=1, verdict=verdict, cause=cause, message="as it says"
        )


@pytest.fixture
def story(home: Path) -> Iterator[Story]:
    made = Story(home)
    yield made
    made.client.close()
    made.code.close()


def iterations(found: list[Event]) -> list[int]:
    return [event.metrics["training_iteration"] for event in found if isinstance(event, AttemptReported)]


def test_a_run_from_its_start_to_its_end(story: Story) -> None:
    watch = story.watch("acc")
    assert watch.poll() == []
    story.begin()
    story.metrics(1, acc=0.5)
    story.save(1)
    started, reported, saved = watch.poll()
    assert started == AttemptStarted(trial="00003", attempt=2, slot="exp-00000000", host="n1", pid=77)
    assert isinstance(reported, AttemptReported)
    assert (reported.metrics["acc"], reported.metrics["training_iteration"]) == (0.5, 1)
    assert 5.0 <= reported.metrics["time_total_s"] < 60.0
    assert saved == AttemptSaved(trial="00003", attempt=2, iteration=1, path="/c/step-1")
    story.metrics(2, acc=0.7)
    story.end("succeeded", "ok")
    assert iterations(found := watch.poll()) == [2]
    assert found[-1] == AttemptEnded(trial="00003", attempt=2, how=AttemptOutcome.DONE)


def test_a_report_goes_out_when_the_metric_is_in_it(story: Story) -> None:
    watch = story.watch("acc")
    for step in range(1, 5):
        story.metrics(step, loss=1.0 / step)
    story.metrics(4, acc=0.25)
    found = [event for event in watch.poll() if isinstance(event, AttemptReported)]
    assert len(found) == 1
    assert found[0].metrics.items() >= {"acc": 0.25, "loss": 0.25, "training_iteration": 4}.items()


def test_reports_without_a_step_are_counted_from_the_checkpoint(story: Story) -> None:
    watch = story.watch("acc", iteration=7)
    story.metrics(acc=1)
    story.metrics(acc=2)
    assert iterations(watch.poll()) == [8, 9]


def test_what_windlass_did_again_is_passed_over(story: Story) -> None:
    watch = story.watch("acc")
    for step in (0, 1, 2, 3, 2, 3, 4):
        story.metrics(step, acc=step)
    assert iterations(watch.poll()) == [1, 2, 3, 4]


def test_only_the_lowest_rank_speaks(story: Story) -> None:
    watch = story.watch("acc")
    story.metrics(1, rank=0, acc=1.0)
    story.metrics(2, rank=1, acc=9.0)
    story.metrics(2, rank=0, acc=2.0)
    values = [event.metrics["acc"] for event in watch.poll() if isinstance(event, AttemptReported)]
    assert values == [1.0, 2.0]


def test_a_metric_that_never_comes_is_told_before_the_end(story: Story) -> None:
    watch = story.watch("accuracy")
    for step in range(1, 103):
        story.metrics(step, acc=0.5)
    assert "acc" in next(event.metrics for event in watch.poll() if isinstance(event, AttemptReported))


def test_a_short_run_without_the_metric_is_told_at_its_end(story: Story) -> None:
    watch = story.watch("accuracy")
    story.metrics(1, acc=0.5)
    story.end("succeeded", "ok")
    found = watch.poll()
    assert iterations(found) == [1]
    assert isinstance(found[-1], AttemptEnded)


def test_infinite_and_missing_numbers_are_numbers(story: Story) -> None:
    watch = story.watch("acc")
    story.metrics(1, acc="-inf")
    assert [event.metrics["acc"] for event in watch.poll() if isinstance(event, AttemptReported)] == [float("-inf")]


@pytest.mark.parametrize(
    ("verdict", "cause", "how"),
    [
        ("failed", "user-error", AttemptOutcome.FAILED),
        ("failed", "out-of-memory", AttemptOutcome.FAILED),
        ("failed", "node-lost", AttemptOutcome.LOST),
        ("failed", "preempted", AttemptOutcome.LOST),
        ("failed", "no-progress", AttemptOutcome.FAILED),
        ("stopped", "cancelled", AttemptOutcome.FAILED),
    ],
)
def test_the_verdict_says_how_it_ended(story: Story, verdict: str, cause: str, how: AttemptOutcome) -> None:
    watch = story.watch("acc")
    story.begin()
    story.end(verdict, cause, traceback="Traceback ...\nmy.lib.OddError: 3 is odd")
    ended = watch.poll()[-1]
    assert isinstance(ended, AttemptEnded)
    assert ended.how is how
    assert ended.error.startswith("Traceback")
    assert f"run exp-00000000 {verdict}: {cause}" in ended.error
    assert ended.kind == ("OddError" if how is AttemptOutcome.FAILED else "")


def test_a_stop_that_the_sweep_asked_for_is_a_halt_also_for_its_next_head(story: Story) -> None:
    story.client.append(events.STOP_REQUESTED, tasks={"main": 1}, reason=ASKED, is_checkpoint_wanted=False)
    story.end("stopped", "cancelled")
    assert story.watch("acc").poll()[-1] == AttemptEnded(trial="00003", attempt=2, how=AttemptOutcome.HALTED)


def test_a_run_that_was_never_made_whole_is_lost(story: Story, home: Path) -> None:
    folder = create(Home(home), "exp-11111111")
    writer = JournalWriter(folder.journal, "client", SystemClock())
    task = {"after": [], "replicas": 1, "interrupted": 50, "failed": 0}
    writer.append(events.RUN_CREATED, run=folder.id, name="exp", why="", plan_hash="", tasks={"main": task})
    writer.append(
        events.TASK_ENDED, task="main", job=0, attempt=0, verdict="failed", cause="start-failed", message="too early"
    )
    writer.close()
    start = StartAttempt(trial="00003", attempt=2, config={}, resources=ONE_CPU)
    ended = Watch(start, Run(folder, Home(home)), Home(home), ("acc",)).poll()[-1]
    assert isinstance(ended, AttemptEnded)
    assert ended.how is AttemptOutcome.LOST


def test_another_head_that_reads_everything_at_once_tells_the_same_times(story: Story) -> None:
    """Its reader goes by file, and the reports come before the records that say when the attempt began."""
    story.code.close()
    story.code = JournalWriter(story.folder.journal, "a.report", SystemClock())
    first = story.watch("acc")
    story.begin()
    seen = first.poll()
    for step in (1, 2):
        story.metrics(step, acc=step)
        seen += first.poll()
    story.end("succeeded", "ok")
    seen += first.poll()
    times = [
        [event.metrics["time_total_s"] for event in found if isinstance(event, AttemptReported)]
        for found in (seen, story.watch("acc").poll())
    ]
    assert times[0] == times[1]
    assert len(times[0]) == 2
    assert times[0][0] > 5.0
