"""The files between head and slots, with workers that are channels in this process and runs that are told what to be."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from windlass import Options
from windlass.core.errors import UsageError
from windlass.launcher.prepare import prepare_file
from windlass.record.state import End as RunEnd
from windlass.record.state import RunFacts, State
from windlass.tune.executors.channel import ChannelClosed
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptStarted,
    Event,
    Fit,
    Go,
    Halt,
    SlotJoined,
    SlotLost,
    StartAttempt,
    Work,
)
from windlass.tune.executors.runs.trial_template import TrialTemplate
from windlass.tune.executors.slots import SlotsExecutor, executor, slot_runs
from windlass.tune.executors.slots.files import SlotFiles
from windlass.tune.executors.slots.slot_runs import RunSlot
from windlass.tune.executors.slots.worker import FileChannel
from windlass.tune.trial import ONE_CPU, Resources

ENDED = {"type": "ended", "trial": "00000", "attempt": 1, "how": "done", "error": "", "kind": ""}


def reported(iteration: int, trial: str = "00000") -> dict[str, Any]:
    metrics = {"training_iteration": iteration, "time_total_s": 1.0}
    return {"type": "reported", "trial": trial, "attempt": 1, "metrics": metrics, "saved": ""}


@dataclass
class Run:
    """A run that is what a test says."""

    id: str = "slot-00000000"
    facts: RunFacts = field(default_factory=RunFacts)

    def reconcile(self) -> None:
        """Nothing to do."""


class Bench:
    """A head whose slots have no runs, and a clock that a test turns."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now = folder, 100.0
        self.runs: dict[str, Run] = {}
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep, time_ns=time.time_ns)
        monkeypatch.setattr(executor, "time", clock)
        monkeypatch.setattr(executor, "SlotRuns", self._slot_runs)
        self.work = Work(
            trainable=json.dumps, name="s", folder=str(folder), storage=str(folder / "checkpoints"), num_slots=2
        )
        self.head = self.new_head()

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _slot_runs(self, *arguments: Any) -> slot_runs.SlotRuns:
        made = slot_runs.SlotRuns(*arguments)
        made.launch = self._launch  # type: ignore[method-assign]
        return made

    def _launch(self, names: Sequence[str]) -> list[RunSlot]:
        return [RunSlot(name, self.runs.setdefault(name, Run())) for name in names]  # type: ignore[arg-type]

    def new_head(self) -> SlotsExecutor:
        found = SlotsExecutor()
        found.open(self.work)
        return found

    def worker(self, slot: str, incarnation: str) -> FileChannel:
        return FileChannel(SlotFiles(self.folder), slot, incarnation)

    def start(self, trial: str = "00000") -> None:
        assert self.head.room(ONE_CPU).fit is Fit.NOW
        self.head.start(StartAttempt(trial=trial, attempt=1, config={"x": 1}, resources=ONE_CPU))

    def poll(self) -> list[Event]:
        return self.head.poll(0.0)


@pytest.fixture
def bench(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    del home
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "slot.yaml").write_text("name: slot\nrun: worker\n")
    folder = tmp_path / "sweep"
    folder.mkdir()
    TrialTemplate.of(prepare_file(tmp_path / "slot.yaml", (), Options(allow_dirty=True)), "s").write(folder)
    found = Bench(folder, monkeypatch)
    yield found
    found.head.detach()


def test_an_attempt_from_its_order_to_its_end(bench: Bench) -> None:
    assert bench.head.room(ONE_CPU).fit is Fit.LATER
    worker = bench.worker("000", "00001-a")
    (joined,) = bench.poll()
    assert isinstance(joined, SlotJoined)
    bench.start()
    order = worker.receive(0)
    assert order is not None
    assert (order["type"], order["config"]) == ("start", {"x": 1})
    worker.send(reported(1))
    bench.head.send(Go(trial="00000", attempt=1, credit=2))
    worker.send(ENDED)
    started, report, ended = bench.poll()
    assert isinstance(started, AttemptStarted)
    assert started.slot == "000"
    assert isinstance(report, AttemptReported)
    assert isinstance(ended, AttemptEnded)
    go = worker.receive(0)
    assert go is not None
    assert go["credit"] == 2
    assert bench.head.room(ONE_CPU).fit is Fit.NOW


def test_a_life_takes_no_order_of_an_earlier_one(bench: Bench) -> None:
    bench.worker("000", "00001-a").close()
    bench.poll()
    bench.start()
    later = bench.worker("000", "00002-b")
    assert later.receive(0) is None
    lost, joined = bench.poll()
    assert isinstance(lost, AttemptEnded)
    assert (lost.how, "was restarted" in lost.error) == (AttemptOutcome.LOST, True)
    assert isinstance(joined, SlotJoined)


def test_words_of_an_earlier_life_are_dropped(bench: Bench) -> None:
    old = bench.worker("000", "00001-a")
    bench.poll()
    bench.start()
    bench.worker("000", "00002-b")
    bench.poll()
    old.send(reported(1))
    old.send(ENDED)
    assert bench.poll() == []


def test_a_worker_whose_code_ended_the_process_has_a_failed_trial(bench: Bench) -> None:
    bench.worker("000", "00001-a").close()
    bench.poll()
    bench.start()
    bench.runs["000"].facts.task("main").attempts[1] = _attempt()
    bench.worker("000", "00002-b")
    ended = bench.poll()[0]
    assert isinstance(ended, AttemptEnded)
    assert (ended.how, "exit code 7" in ended.error) == (AttemptOutcome.FAILED, True)


def _attempt() -> Any:
    @dataclass
    class TrialAttempt:
        end: RunEnd = field(default_factory=lambda: RunEnd("user-error", 7, message="exit code 7"))

    return TrialAttempt()


def test_a_silent_worker_loses_its_trial_and_is_of_use_again_when_it_is_heard(bench: Bench) -> None:
    worker = bench.worker("000", "00001-a")
    bench.poll()
    bench.start()
    worker.receive(0)
    bench.poll()
    bench.now += 200.0
    found: list[Event] = []
    for _ in range(4):
        bench.now += 10
        found += bench.poll()
    assert [type(event) for event in found] == [SlotLost, AttemptEnded]
    assert "silent" in found[0].why if isinstance(found[0], SlotLost) else False
    assert bench.head.room(ONE_CPU).fit is Fit.LATER
    halt = worker.receive(0)
    assert halt is not None
    assert halt["type"] == "halt"
    worker.send(reported(5))
    assert bench.poll() == []
    worker.send({**ENDED, "how": "halted"})
    assert [type(event) for event in bench.poll()] == [SlotJoined]
    bench.start("00001")


def test_a_run_that_is_over_is_replaced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.worker("000", "00001-a").close()
    bench.poll()
    bench.start()
    monkeypatch.setattr(RunFacts, "state", property(lambda self: State.FAILED if self is over else State.RUNNING))
    over = bench.runs["000"].facts
    found: list[Event] = []
    for _ in range(4):
        bench.now += 10
        found += bench.poll()
    assert [type(event) for event in found] == [SlotLost, AttemptEnded]
    assert "000-1" in bench.runs
    bench.worker("000-1", "00001-c")
    assert [type(event) for event in bench.poll()] == [SlotJoined]


def test_another_head_hears_everything_from_the_beginning(bench: Bench) -> None:
    one, two = bench.worker("000", "00001-a"), bench.worker("001", "00001-b")
    bench.poll()
    bench.start("00000")
    bench.start("00001")
    assert one.receive(0)
    one.send(reported(1))
    one.send(ENDED)
    bench.head.detach()
    bench.head = bench.new_head()
    assert bench.head.reattach({"00000": 1, "00001": 1, "00002": 1}) == {"00000": 1, "00001": 1}
    assert [type(event) for event in bench.poll()] == [
        AttemptStarted,
        AttemptReported,
        AttemptEnded,
        SlotJoined,
        SlotJoined,
    ]
    assert bench.head.room(ONE_CPU).fit is Fit.NOW
    assert two.receive(0), "the order of the old head still holds"
    bench.head.send(Halt(trial="00001", attempt=1))
    halt = two.receive(0)
    assert halt is not None
    assert halt["type"] == "halt"


def test_an_attempt_of_a_life_that_is_over_is_not_found_again(bench: Bench) -> None:
    bench.worker("000", "00001-a").close()
    bench.poll()
    bench.start()
    bench.head.detach()
    bench.worker("000", "00002-b")
    bench.head = bench.new_head()
    assert bench.head.reattach({"00000": 1}) == {}


def test_a_trial_that_fits_no_slot_is_refused_at_once(bench: Bench) -> None:
    room = bench.head.room(Resources(bundles=({"CPU": 1.0, "GPU": 2.0},)))
    assert room.fit is Fit.NEVER
    assert "a trial needs 2 GPU, but a slot has 0" in room.why


def test_a_spool_that_is_closed_is_a_closed_channel(bench: Bench) -> None:
    worker = bench.worker("000", "00001-a")
    worker.close()
    with pytest.raises(ChannelClosed):
        worker.send(reported(1))


def test_the_first_end_is_told_once(bench: Bench) -> None:
    told: list[int] = []
    worker = FileChannel(SlotFiles(bench.folder), "000", "00001-a", on_first_end=lambda: told.append(1))
    worker.send(ENDED)
    worker.send(ENDED)
    assert told == [1]


def test_a_slot_is_one_task_on_one_node(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "slot.yaml").write_text("name: slot\ntasks: {main: {run: worker, nodes: 2}}\n")
    TrialTemplate.of(prepare_file(tmp_path / "slot.yaml", (), Options(allow_dirty=True)), "s").write(home)
    with pytest.raises(UsageError, match="a task on 2 nodes"):
        SlotsExecutor().open(Work(trainable=json.dumps, name="s", folder=str(home), storage=""))
