"""Conformance tests for executors of trials: subclass `ExecutorConformance` and define `make_executor`.

class TestLocalExecutor(ExecutorConformance):
    def make_executor(self, folder: Path) -> Executor:
        return Local()
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from windlass.core.process import ProcessId, identify, is_alive
from windlass.testing.sample_trainables import Counter, act, report_and_save
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptSaved,
    AttemptStarted,
    Event,
    Executor,
    Fit,
    Go,
    Halt,
    StartAttempt,
    Work,
)
from windlass.tune.trial import ONE_CPU, Resources

__all__ = ["ExecutorBench", "ExecutorConformance"]

_DEADLINE_S = 300.0
_QUIET_S = 0.4
E = TypeVar("E", AttemptStarted, AttemptReported, AttemptSaved, AttemptEnded)


class ExecutorBench:
    """Helper that drives an executor as a controller would, and records its events.

    Attributes:
        events: all events so far, in order.
    """

    def __init__(self, executor: Executor, work: Work) -> None:
        self.executor = executor
        self.work = work
        self.events: list[Event] = []

    def start(self, trial: str, attempt: int = 1, *, credit: int = 1, **fields: Any) -> None:
        """Start an attempt as soon as the executor has room for it."""
        resources = fields.pop("resources", ONE_CPU)
        self._wait(lambda: self.executor.room(resources).fit is Fit.NOW, f"room for {trial}")
        config = fields.pop("config", {})
        self.executor.start(
            StartAttempt(trial=trial, attempt=attempt, config=config, resources=resources, credit=credit, **fields)
        )

    def go(self, trial: str, attempt: int = 1, *, credit: int = 1, saves: bool = False) -> None:
        """Let an attempt continue."""
        self.executor.send(Go(trial=trial, attempt=attempt, credit=credit, saves=saves))

    def halt(self, trial: str, attempt: int = 1, *, saves: bool = False) -> None:
        """End an attempt."""
        self.executor.send(Halt(trial=trial, attempt=attempt, saves=saves))

    def of(self, kind: type[E], trial: str, attempt: int = 1) -> list[E]:
        """Return the events of this kind that an attempt has sent so far."""
        found = [event for event in self.events if isinstance(event, kind)]
        return [event for event in found if (event.trial, event.attempt) == (trial, attempt)]

    def wait_for(self, kind: type[E], trial: str, attempt: int = 1, *, number: int = 1) -> E:
        """Wait for the n-th event of this kind and return it."""
        self._wait(lambda: len(self.of(kind, trial, attempt)) >= number, f"{kind.__name__} {number} of {trial}")
        return self.of(kind, trial, attempt)[number - 1]

    def finish(self, trial: str, attempt: int = 1) -> AttemptEnded:
        """Answer every report of an attempt until it ends, and return the end."""
        answered = 0

        def is_over() -> bool:
            nonlocal answered
            while answered < len(self.of(AttemptReported, trial, attempt)):
                answered += 1
                self.go(trial, attempt)
            return bool(self.of(AttemptEnded, trial, attempt))

        self._wait(is_over, f"the end of {trial}")
        return self.of(AttemptEnded, trial, attempt)[0]

    def look(self, seconds: float) -> list[Event]:
        """Return the events that arrive within some seconds."""
        end, found = time.monotonic() + seconds, []
        while (left := end - time.monotonic()) > 0:
            found += self.executor.poll(left)
        self.events += found
        return found

    def _wait(self, sweep_exists: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _DEADLINE_S
        while not sweep_exists():
            assert time.monotonic() < deadline, f"no {what} in {_DEADLINE_S:g} s; told: {self.events}"
            self.events += self.executor.poll(0.1)


class ExecutorConformance:
    """Conformance suite for executors.

    Class attributes state what the executor supports; other tests are left out.
    """

    can_lose_workers: ClassVar[bool] = True
    """Workers are separate processes that can die independently."""
    sees_exits: ClassVar[bool] = True
    """The executor distinguishes a trial that exits from one that was killed."""
    counts_resources: ClassVar[bool] = True
    num_slots: ClassVar[int] = 2
    """Number of trials that the executor can run at once in these tests."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cannot = {
            "test_a_lost_worker_is_told_once_and_its_trial_goes_on_elsewhere": not cls.can_lose_workers,
            "test_nothing_is_left_after_close": not cls.can_lose_workers,
            "test_a_trial_that_ends_its_process_has_failed": not (cls.can_lose_workers and cls.sees_exits),
            "test_what_can_never_fit_is_said_at_once": not cls.counts_resources,
        }
        for test in (name for name, is_left_out in cannot.items() if is_left_out):
            getattr(ExecutorConformance, test)  # a test that was renamed is an error here
            setattr(cls, test, None)

    def make_executor(self, folder: Path) -> Executor:
        """Return a new executor; each subclass defines it."""
        raise AssertionError(f"{type(self).__name__} makes no executor")

    def kill_worker(self, started: AttemptStarted) -> None:
        """Kill a worker, as if its machine were lost."""
        os.kill(started.pid, signal.SIGKILL)

    @contextmanager
    def bench(self, folder: Path, trainable: Any = act, **fields: Any) -> Iterator[ExecutorBench]:
        """Yield an open executor and close it afterwards."""
        folder.mkdir(exist_ok=True)
        fields = {"num_slots": self.num_slots, **fields}
        work = Work(
            trainable=trainable, name="sweep", folder=str(folder), storage=str(folder / "checkpoints"), **fields
        )
        executor = self.make_executor(folder)
        try:
            executor.open(work)
            yield ExecutorBench(executor, work)
        finally:
            executor.close()

    # ---------------------------------------------------------------------------------------------- reports, credit

    def test_an_attempt_starts_reports_and_ends(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            bench.start("00000", config={"num": 3})
            ended = bench.finish("00000")
            assert (ended.how, ended.error) == (AttemptOutcome.DONE, "")
            own = [
                event
                for event in bench.events
                if isinstance(event, AttemptStarted | AttemptReported | AttemptSaved | AttemptEnded)
            ]
            assert [type(event) for event in own] == [
                AttemptStarted,
                AttemptReported,
                AttemptReported,
                AttemptReported,
                AttemptEnded,
            ]
            reports = bench.of(AttemptReported, "00000")
            assert [report.metrics["value"] for report in reports] == [0, 1, 2]
            assert [report.metrics["training_iteration"] for report in reports] == [1, 2, 3]
            assert all(report.metrics["time_total_s"] >= 0 for report in reports)
            assert bench.executor.room(ONE_CPU).fit is Fit.NOW

    def test_no_report_comes_beyond_the_credit(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            bench.start("00000", config={"num": 9}, credit=1)
            bench.start("00001", config={"num": 9}, credit=3) if self.num_slots > 1 else None
            bench.wait_for(AttemptReported, "00000")
            if self.num_slots > 1:
                bench.wait_for(AttemptReported, "00001", number=3)
            bench.look(_QUIET_S)
            assert len(bench.of(AttemptReported, "00000")) == 1
            if self.num_slots > 1:
                assert len(bench.of(AttemptReported, "00001")) == 3
            bench.go("00000", credit=2)
            bench.wait_for(AttemptReported, "00000", number=3)
            bench.look(_QUIET_S)
            assert len(bench.of(AttemptReported, "00000")) == 3

    def test_credit_may_be_said_as_an_iteration_and_twice(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            bench.start("00000", config={"num": 9})
            bench.wait_for(AttemptReported, "00000")
            for _ in range(2):
                bench.executor.send(Go(trial="00000", attempt=1, credit=2, upto=3))
            bench.wait_for(AttemptReported, "00000", number=3)
            bench.look(_QUIET_S)
            assert len(bench.of(AttemptReported, "00000")) == 3

    def test_configurations_and_metrics_arrive_as_they_are(self, tmp_path: Path) -> None:
        echo = {"a": [1, 2.5, None, True], "ä": "\n\u2028", "big": 2**60}
        with self.bench(tmp_path) as bench:
            bench.start("00000", config={"num": 1, "echo": echo})
            bench.finish("00000")
            metrics = bench.of(AttemptReported, "00000")[0].metrics
        assert {name: value for name, value in metrics.items() if name.startswith("echo")} == {
            f"echo/{name}": value for name, value in echo.items()
        }
        assert math.isnan(metrics["nan"])
        assert metrics["inf"] == math.inf

    def test_many_trials_each_end_once(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            trials = [f"{number:05d}" for number in range(12)]
            for trial in trials:
                bench.start(trial, config={"num": 2}, credit=9)
            for trial in trials:
                assert bench.finish(trial).how is AttemptOutcome.DONE
            for trial in trials:
                assert [r.metrics["training_iteration"] for r in bench.of(AttemptReported, trial)] == [1, 2]
                assert len(bench.of(AttemptEnded, trial)) == 1

    # -------------------------------------------------------------------------------------------------------- halts

    def test_a_halt_ends_an_attempt_and_frees_its_slot(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            for number in range(2):
                bench.start(f"0000{number}", config={"num": 9})
                bench.wait_for(AttemptReported, f"0000{number}")
                bench.halt(f"0000{number}")
                assert bench.wait_for(AttemptEnded, f"0000{number}").how is AttemptOutcome.HALTED
                assert len(bench.of(AttemptReported, f"0000{number}")) == 1
            assert bench.executor.room(ONE_CPU).fit is Fit.NOW

    def test_a_halt_that_answers_nothing_ends_it_too(self, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        with self.bench(tmp_path) as bench:
            bench.start("00000", config={"num": 9, "gate": str(gate)}, credit=9)
            bench.wait_for(AttemptStarted, "00000")
            bench.halt("00000")
            gate.touch()
            assert bench.wait_for(AttemptEnded, "00000").how is AttemptOutcome.HALTED

    def test_orders_for_an_attempt_that_is_over_are_dropped(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            bench.start("00000", config={"num": 1})
            bench.finish("00000")
            bench.start("00000", attempt=2, config={"num": 9})
            bench.wait_for(AttemptReported, "00000", 2)
            for _ in range(3):
                bench.go("00000", 1, credit=5)
                bench.halt("00000", 1)
            bench.halt("77777")
            bench.look(_QUIET_S)
            assert len(bench.of(AttemptReported, "00000", 2)) == 1
            assert not bench.of(AttemptEnded, "00000", 2)
            assert len(bench.of(AttemptEnded, "00000", 1)) == 1

    # -------------------------------------------------------------------------------------------------- checkpoints

    def test_a_class_saves_when_told_and_another_attempt_goes_on_from_there(self, tmp_path: Path) -> None:
        with self.bench(tmp_path, Counter) as bench:
            bench.start("00000", config={"num": 5, "by": 10})
            bench.wait_for(AttemptReported, "00000")
            bench.go("00000", saves=True)
            first = bench.wait_for(AttemptSaved, "00000")
            assert first.iteration == 1
            bench.wait_for(AttemptReported, "00000", number=2)
            bench.halt("00000", saves=True)
            assert bench.wait_for(AttemptEnded, "00000").how is AttemptOutcome.HALTED
            saved = bench.wait_for(AttemptSaved, "00000", number=2)
            assert saved.iteration == 2
            where: dict[str, Any] = {"restore_from": saved.path, "iteration": 2, "time_total_s": 7.0}
            bench.start("00000", attempt=2, config={"num": 5, "by": 10}, **where)
            assert bench.finish("00000", 2).how is AttemptOutcome.DONE
            reports = [report.metrics for report in bench.of(AttemptReported, "00000", 2)]
            assert [metrics["value"] for metrics in reports] == [30, 40, 50]
            assert [metrics["training_iteration"] for metrics in reports] == [3, 4, 5]
            assert reports[0]["time_total_s"] >= 7.0
            assert reports[-1]["done"] is True

    def test_a_halt_without_saving_saves_nothing(self, tmp_path: Path) -> None:
        with self.bench(tmp_path, Counter) as bench:
            bench.start("00000", config={"num": 5, "by": 1})
            bench.wait_for(AttemptReported, "00000")
            bench.halt("00000")
            bench.wait_for(AttemptEnded, "00000")
            assert not bench.of(AttemptSaved, "00000")

    def test_classes_save_every_so_often_and_at_the_end(self, tmp_path: Path) -> None:
        with self.bench(tmp_path, Counter, checkpoint_every=2, checkpoint_at_end=True) as bench:
            bench.start("00000", config={"num": 5, "by": 1})
            bench.finish("00000")
            saved = [bool(report.saved) for report in bench.of(AttemptReported, "00000")]
            assert saved == [False, True, False, True, True]

    def test_a_function_saves_by_reporting_and_goes_on_from_there(self, tmp_path: Path) -> None:
        with self.bench(tmp_path, report_and_save) as bench:
            bench.start("00000", config={"num": 4})
            report = bench.wait_for(AttemptReported, "00000", number=1)
            assert report.saved
            bench.halt("00000")
            bench.wait_for(AttemptEnded, "00000")
            bench.start("00000", attempt=2, config={"num": 4}, restore_from=report.saved, iteration=1)
            assert bench.finish("00000", 2).how is AttemptOutcome.DONE
            values = [found.metrics["value"] for found in bench.of(AttemptReported, "00000", 2)]
            assert values == [1, 2, 3]

    def test_a_function_that_is_told_to_save_names_its_newest_checkpoint(self, tmp_path: Path) -> None:
        with self.bench(tmp_path, report_and_save) as bench:
            bench.start("00000", config={"num": 4})
            report = bench.wait_for(AttemptReported, "00000")
            bench.go("00000", saves=True)
            saved = bench.wait_for(AttemptSaved, "00000")
            assert (saved.iteration, saved.path) == (1, report.saved)

    def test_a_clone_loads_another_trials_checkpoint_where_it_lies(self, tmp_path: Path) -> None:
        with self.bench(tmp_path, Counter) as bench:
            bench.start("00000", config={"num": 3, "by": 100})
            bench.wait_for(AttemptReported, "00000")
            bench.halt("00000", saves=True)
            bench.wait_for(AttemptEnded, "00000")
            path = bench.wait_for(AttemptSaved, "00000").path
            bench.start("00001", config={"num": 2, "by": 1}, restore_from=path, iteration=1)
            bench.finish("00001")
            assert bench.of(AttemptReported, "00001")[0].metrics["value"] == 101
            bench.start("00000", attempt=2, config={"num": 2, "by": 100}, restore_from=path, iteration=1)
            bench.finish("00000", 2)
            assert bench.of(AttemptReported, "00000", 2)[0].metrics["value"] == 200

    def test_a_torn_checkpoint_is_never_loaded(self, tmp_path: Path) -> None:
        with self.bench(tmp_path, Counter) as bench:
            bench.start("00000", config={"num": 3, "by": 1})
            bench.wait_for(AttemptReported, "00000")
            bench.halt("00000", saves=True)
            path = bench.wait_for(AttemptSaved, "00000").path
            bench.wait_for(AttemptEnded, "00000")
            state = Path(path, "state.json")
            state.write_text(state.read_text()[:-1])
            bench.start("00000", attempt=2, config={"num": 3, "by": 1}, restore_from=path, iteration=1)
            ended = bench.finish("00000", 2)
            assert ended.how is AttemptOutcome.FAILED
            assert "is incomplete" in ended.error
            assert not bench.of(AttemptReported, "00000", 2)

    # --------------------------------------------------------------------------------------------------------- ends

    def test_a_trials_own_error_is_told_with_its_traceback_and_the_slot_goes_on(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            bench.start("00000", config={"num": 3, "fails_at": 1})
            ended = bench.finish("00000")
            assert (ended.how, ended.kind) == (AttemptOutcome.FAILED, "ZeroDivisionError")
            assert "ZeroDivisionError" in ended.error
            assert "sample_trainables" in ended.error.splitlines()[1]
            assert len(bench.of(AttemptReported, "00000")) == 1
            bench.start("00001", config={"num": 1})
            assert bench.finish("00001").how is AttemptOutcome.DONE

    def test_a_value_that_is_not_json_fails_the_trial_and_names_the_metric(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            bench.start("00000", config={"num": 3, "reports_an_object": True})
            ended = bench.finish("00000")
            assert ended.how is AttemptOutcome.FAILED
            assert "`thing/inner`" in ended.error

    def test_a_returned_dict_is_the_last_report(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            bench.start("00000", config={"num": 1, "returns": {"value": 42}})
            assert bench.finish("00000").how is AttemptOutcome.DONE
            assert [report.metrics["value"] for report in bench.of(AttemptReported, "00000")] == [0, 42]

    def test_a_lost_worker_is_told_once_and_its_trial_goes_on_elsewhere(self, tmp_path: Path) -> None:
        with self.bench(tmp_path, Counter, checkpoint_every=1) as bench:
            bench.start("00000", config={"num": 4, "by": 1})
            started = bench.wait_for(AttemptStarted, "00000")
            report = bench.wait_for(AttemptReported, "00000")
            self.kill_worker(started)
            ended = bench.wait_for(AttemptEnded, "00000")
            assert ended.how is AttemptOutcome.LOST
            assert ended.error
            bench.start("00000", attempt=2, config={"num": 4, "by": 1}, restore_from=report.saved, iteration=1)
            assert bench.finish("00000", 2).how is AttemptOutcome.DONE
            assert [found.metrics["value"] for found in bench.of(AttemptReported, "00000", 2)] == [2, 3, 4]
            assert len(bench.of(AttemptEnded, "00000")) == 1

    def test_a_trial_that_ends_its_process_has_failed(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            bench.start("00000", config={"num": 3, "exits_at": 1})
            ended = bench.finish("00000")
            assert ended.how is AttemptOutcome.FAILED
            assert "exit code 7" in ended.error
            bench.start("00001", config={"num": 1})
            assert bench.finish("00001").how is AttemptOutcome.DONE

    # --------------------------------------------------------------------------------------------------------- room

    def test_no_more_trials_run_than_there_are_slots(self, tmp_path: Path) -> None:
        gate = tmp_path / "gate"
        with self.bench(tmp_path) as bench:
            for number in range(self.num_slots):
                bench.start(f"0000{number}", config={"num": 1, "gate": str(gate)})
            for number in range(self.num_slots):
                bench.wait_for(AttemptStarted, f"0000{number}")
            room = bench.executor.room(ONE_CPU)
            assert room.fit is Fit.LATER
            assert room.why
            gate.touch()
            for number in range(self.num_slots):
                bench.finish(f"0000{number}")
            assert bench.executor.room(ONE_CPU).fit is Fit.NOW

    def test_what_can_never_fit_is_said_at_once(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            for bundle in ({"CPU": 1e6}, {"CPU": 1.0, "GPU": 4096.0}, {"CPU": 1.0, "no-such-thing": 1.0}):
                room = bench.executor.room(Resources(bundles=(bundle,)))
                assert room.fit is Fit.NEVER
                assert room.why
            assert bench.executor.room(ONE_CPU).fit is Fit.NOW

    # -------------------------------------------------------------------------------------------------------- close

    def test_nothing_is_left_after_close(self, tmp_path: Path) -> None:
        with self.bench(tmp_path) as bench:
            for number in range(self.num_slots):
                bench.start(f"0000{number}", config={"num": 1, "gate": str(tmp_path / "never")})
            pids = [bench.wait_for(AttemptStarted, f"0000{number}").pid for number in range(self.num_slots)]
            workers = [found for pid in pids if (found := identify(pid)) is not None]
            assert len(workers) == self.num_slots
            bench.executor.close()
            self.wait_until_gone(workers)

    def wait_until_gone(self, workers: list[ProcessId]) -> None:
        """Wait for processes to end; returns at once if `close` itself waits for them."""
        deadline = time.monotonic() + _DEADLINE_S
        while any(is_alive(worker) for worker in workers):
            assert time.monotonic() < deadline, f"still there: {workers}"
            time.sleep(0.02)
