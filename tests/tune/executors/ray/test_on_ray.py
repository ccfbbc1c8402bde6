"""The executor on a real Ray: shapes, reuse, errors, heads that come and go."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.ray import LocalRay
from tests.tune.executors.ray import trials
from windlass.core.errors import PreconditionError, UsageError
from windlass.testing.executor_conformance import ExecutorConformance
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptOutcome,
    AttemptReported,
    AttemptStarted,
    Event,
    Executor,
    Fit,
    Go,
    Halt,
    SlotJoined,
    StartAttempt,
    Work,
)
from windlass.tune.executors.ray import RayExecutor
from windlass.tune.trial import ONE_CPU, Resources

pytestmark = pytest.mark.system

_LONG_S = 300.0


@pytest.mark.usefixtures("ray_lab")
class TestConformance(ExecutorConformance):
    """What every executor must do."""

    sees_exits = False  # Ray tells that a process is gone, not how it ended

    def make_executor(self, folder: Path) -> Executor:
        return RayExecutor()


class Head:
    """A head reduced to what these tests need: starts, answers every report, collects events."""

    def __init__(self, executor: RayExecutor) -> None:
        self.executor = executor
        self.events: list[Event] = []

    def start(self, trial: str, config: dict[str, Any], **settings: Any) -> None:
        found = StartAttempt(
            trial=trial, attempt=settings.pop("attempt", 1), config=config, **({"resources": ONE_CPU} | settings)
        )
        self.until(lambda: self.executor.room(found.resources).fit is Fit.NOW, f"room for {trial}")
        self.executor.start(found)

    def until(self, condition: Callable[[], object], what: str, timeout_s: float = _LONG_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"waited for {what}; got {self.events}"
            for event in self.executor.poll(0.2):
                self.events.append(event)
                if isinstance(event, AttemptReported):
                    self.executor.send(Go(trial=event.trial, attempt=event.attempt))

    def end(self, *trials_: str) -> list[AttemptEnded]:
        """Wait for the ends of trials."""
        self.until(lambda: all(self.ended(trial) for trial in trials_), f"the end of {trials_}")
        return [self.ended(trial)[-1] for trial in trials_]

    def ended(self, trial: str) -> list[AttemptEnded]:
        return [e for e in self.events if isinstance(e, AttemptEnded) and e.trial == trial]

    def reports(self, trial: str) -> list[dict[str, Any]]:
        return [e.metrics for e in self.events if isinstance(e, AttemptReported) and e.trial == trial]

    def of(self, kind: type[Event]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]


@pytest.fixture
def make(ray_lab: LocalRay, tmp_path: Path) -> Iterator[Callable[..., Head]]:
    """Makes heads of one sweep; the newest one is closed at the end."""
    heads: list[Head] = []

    def build(trainable: Any, *, options: dict[str, Any] | None = None, **settings: Any) -> Head:
        executor = RayExecutor(**(options or {}))
        storage = settings.pop("storage", str(tmp_path / "checkpoints"))
        executor.open(Work(trainable=trainable, name="test", folder=str(tmp_path), storage=storage, **settings))
        heads.append(Head(executor))
        return heads[-1]

    yield build
    for head in heads:
        head.executor.close()


def test_one_actor_runs_many_trials(make: Callable[..., Head]) -> None:
    head = make(trials.place, num_slots=1)
    for number in range(5):
        head.start(str(number), {})
        assert head.end(str(number))[0].how is AttemptOutcome.DONE
    assert len({head.reports(str(n))[0]["pid"] for n in range(5)}) == 1
    assert [e.trial for e in head.of(AttemptStarted)] == list("01234")
    assert len({e.slot for e in head.of(AttemptStarted)} | {e.slot for e in head.of(SlotJoined)}) == 1


def test_a_trial_that_declares_gpus_gets_a_fresh_process_and_its_device(make: Callable[..., Head]) -> None:
    head = make(trials.place)
    half = Resources(bundles=({"GPU": 0.5},))
    for trial in "ab":
        head.start(trial, {}, resources=half)
        head.end(trial)
    assert head.reports("a")[0]["pid"] != head.reports("b")[0]["pid"]
    assert head.reports("a")[0]["devices"] in ("0", "1")


def test_a_process_is_reused_where_that_is_said(make: Callable[..., Head]) -> None:
    head = make(trials.place, reuse="always")
    for trial in "ab":
        head.start(trial, {}, resources=Resources(bundles=({"GPU": 1.0},)))
        head.end(trial)
    assert head.reports("a")[0]["pid"] == head.reports("b")[0]["pid"]


def test_bundles_are_one_placement_group_and_hold_what_the_trial_starts(make: Callable[..., Head]) -> None:
    head = make(trials.asks_ray)
    head.start("a", {}, resources=Resources(bundles=({"CPU": 1.0}, {"CPU": 1.0}), strategy="STRICT_PACK"))
    assert head.end("a")[0].how is AttemptOutcome.DONE
    num_put = head.reports("a")[0]
    assert num_put["mine"]
    assert num_put["inner"] == num_put["mine"]


def test_room_is_what_the_cluster_has(make: Callable[..., Head]) -> None:
    head = make(trials.waits)
    room = head.executor.room
    assert room(Resources(bundles=({"licence": 1.0},))).fit is Fit.NOW
    never = room(Resources(bundles=({"CPU": 3.0}, {"CPU": 3.0}), strategy="SPREAD"))
    assert never.fit is Fit.NEVER
    assert "2 x {3 CPU} SPREAD" in never.why
    assert "4 CPU" in never.why


def test_slots_of_another_shape_give_way(make: Callable[..., Head]) -> None:
    head = make(trials.place)
    for trial in "ab":
        head.start(trial, {}, resources=Resources(bundles=({"CPU": 2.0},)))
    head.end("a", "b")
    head.start("wide", {}, resources=Resources(bundles=({"CPU": 4.0},)))
    assert head.end("wide")[0].how is AttemptOutcome.DONE


def test_num_slots_is_a_limit(make: Callable[..., Head], tmp_path: Path) -> None:
    head = make(trials.waits, num_slots=2)
    for trial in "ab":
        head.start(trial, {"until": str(tmp_path / "go")})
    room = head.executor.room(ONE_CPU)
    assert (room.fit, room.why) == (Fit.LATER, "all 2 slots are taken")
    (tmp_path / "go").touch()
    head.end("a", "b")
    assert head.executor.room(ONE_CPU).fit is Fit.NOW


def test_halt_comes_through_while_nothing_is_said(make: Callable[..., Head]) -> None:
    head = make(trials.counts)
    head.start("a", {"n": 10_000, "sleep_s": 0.01}, credit=10_000)
    head.until(lambda: len(head.reports("a")) > 3, "reports")
    head.executor.send(Halt(trial="a", attempt=1))
    assert head.end("a")[0].how is AttemptOutcome.HALTED


def test_what_trials_print_is_their_log(make: Callable[..., Head], tmp_path: Path) -> None:
    head = make(trials.prints)
    for trial in "ab":
        head.start(trial, {"text": f"hello of {trial}"})
        head.end(trial)
    assert (tmp_path / "trials" / "a" / "log").read_text() == "hello of a\n"
    assert (tmp_path / "trials" / "b" / "log").read_text() == "hello of b\n"
    head.executor.close()
    assert not list((tmp_path / "spools").iterdir())


def test_a_trainable_that_workers_cannot_import_fails_its_trials_and_says_why(
    make: Callable[..., Head], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def train(config):\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import only_here  # type: ignore[import-not-found]

    head = make(only_here.train)
    head.start("a", {})
    (end,) = head.end("a")
    assert (end.how, end.kind) == (AttemptOutcome.FAILED, "ModuleNotFoundError")
    assert "only_here" in end.error


def test_a_runtime_environment_that_is_none_is_refused(make: Callable[..., Head]) -> None:
    with pytest.raises(UsageError) as caught:
        make(trials.place, options={"runtime_env": {"working_dir": "/no/such.zip"}})
    assert caught.value.code == "ray-options"


def test_a_runtime_environment_that_cannot_be_made_fails_the_trial(make: Callable[..., Head]) -> None:
    head = make(trials.place, options={"runtime_env": {"working_dir": "file:///no/such.zip"}})
    head.start("a", {})
    (end,) = head.end("a")
    assert end.how is AttemptOutcome.FAILED
    assert "/no/such.zip" in end.error


def test_a_runtime_environment_reaches_trials(make: Callable[..., Head]) -> None:
    head = make(trials.place, options={"runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": "7"}}})
    head.start("a", {}, resources=Resources(bundles=({"CPU": 1.0},)))
    head.end("a")
    assert head.reports("a")[0]["devices"] == "7"


# ------------------------------------------------------------------------------------------------------------- kills


def test_a_killed_node_is_lost_and_its_trial_waits_for_another(
    make: Callable[..., Head], ray_lab: LocalRay, ray: Any, tmp_path: Path
) -> None:
    ray_lab.add("second", num_cpus=1, resources='{"rare": 1}')
    rare = Resources(bundles=({"rare": 1.0},))
    head = make(trials.waits)
    head.start("a", {"until": str(tmp_path / "go")}, resources=rare)
    head.until(lambda: head.reports("a"), "its report")
    ray_lab.kill("second")
    assert head.end("a")[0].how is AttemptOutcome.LOST
    # Until Ray has taken the node from its table, it is there and not free.
    head.until(lambda: "to come back" in head.executor.room(rare).why, "the node to be gone")
    assert head.executor.room(rare).fit is Fit.LATER
    ray_lab.add("third", num_cpus=1, resources='{"rare": 1}')
    try:
        head.start("a", {"until": str(tmp_path / "go")}, attempt=2, resources=rare)
        (tmp_path / "go").touch()
        head.until(lambda: len(head.ended("a")) == 2, "its second end")
        assert head.ended("a")[1].how is AttemptOutcome.DONE
    finally:
        head.executor.close()
        ray_lab.kill("third")
        _wait_until_dead(ray, "third")


def _wait_until_dead(ray: Any, name: str) -> None:
    """Until Ray knows it: a later test's trial would be sent to the dead node, and lost."""
    deadline = time.monotonic() + _LONG_S
    while any(node["Alive"] and node["NodeName"] == name for node in ray.nodes()):
        assert time.monotonic() < deadline, f"{name} lives for Ray"
        time.sleep(0.1)


HEAD = """
import sys, time
from pathlib import Path
from tests.tune.executors.ray import trials
from tests.tune.executors.ray.test_on_ray import Head
from windlass.tune.executors.protocol import Work
from windlass.tune.executors.ray import RayExecutor

address, folder, linger_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
executor = RayExecutor(address, linger_s=linger_s, init={"_node_ip_address": "127.0.0.2"})
executor.open(Work(trainable=trials.counts, name="test", folder=folder, storage=folder + "/checkpoints"))
head = Head(executor)
head.start("a", {"n": 40, "sleep_s": 0.05}, credit=1000)
head.start("b", {"n": 3}, credit=1000)
head.until(lambda: len(head.reports("a")) > 5 and head.ended("b"), "reports")
Path(folder, "heard").write_text(str(len(head.reports("a"))))
time.sleep(600)
"""


def _dead_head(lab: LocalRay, folder: Path, linger_s: float) -> None:
    """A head in a process of its own that is killed while its trial runs."""
    argv = [sys.executable, "-c", HEAD, lab.address, str(folder), str(linger_s)]
    with (folder / "head.log").open("wb") as log:
        head = subprocess.Popen(argv, stdout=log, stderr=log, cwd=Path(__file__).parents[4])
    try:
        deadline = time.monotonic() + _LONG_S
        while not (folder / "heard").exists():
            assert time.monotonic() < deadline, (folder / "head.log").read_text()
            assert head.poll() is None, (folder / "head.log").read_text()
            time.sleep(0.02)
    finally:
        head.kill()
        head.wait()


def test_a_new_head_finds_the_trial_and_hears_every_report(
    make: Callable[..., Head], ray_lab: LocalRay, tmp_path: Path
) -> None:
    _dead_head(ray_lab, tmp_path, 60.0)
    head = make(trials.counts)
    assert head.executor.reattach({"a": 1, "b": 1, "z": 1}) == {"a": 1, "b": 1}
    assert [end.how for end in head.end("a", "b")] == [AttemptOutcome.DONE, AttemptOutcome.DONE]
    assert [m["training_iteration"] for m in head.reports("a")] == list(range(1, 41))
    assert len(head.reports("b")) == 3
    head.start("c", {"n": 1})
    assert head.end("c")[0].how is AttemptOutcome.DONE
    assert {e.slot for e in head.of(AttemptStarted) if e.trial == "c"} <= {
        e.slot for e in head.of(AttemptStarted) if e.trial in "ab"
    }


def test_an_old_head_that_comes_back_is_refused(make: Callable[..., Head], tmp_path: Path) -> None:
    old = make(trials.waits)
    old.start("a", {"until": str(tmp_path / "go")})
    old.until(lambda: old.reports("a"), "its report")
    new = make(trials.waits)
    assert new.executor.reattach({"a": 1}) == {"a": 1}
    with pytest.raises(PreconditionError) as caught:
        old.until(lambda: False, "the refusal")
    assert caught.value.code == "in-use"
    old.executor.close()
    (tmp_path / "go").touch()
    assert new.end("a")[0].how is AttemptOutcome.DONE


def test_attempts_that_the_journal_does_not_hold_are_ended(make: Callable[..., Head], tmp_path: Path) -> None:
    old = make(trials.waits)
    old.start("a", {"until": str(tmp_path / "go")})
    old.until(lambda: old.reports("a"), "its report")
    new = make(trials.waits)
    assert new.executor.reattach({"a": 2}) == {}
    new.start("a", {"until": str(tmp_path / "go")}, attempt=2)
    (tmp_path / "go").touch()
    assert new.end("a")[0].attempt == 2


def test_slots_without_a_head_end_themselves(ray_lab: LocalRay, ray: Any, tmp_path: Path) -> None:
    _dead_head(ray_lab, tmp_path, 2.0)
    deadline = time.monotonic() + _LONG_S
    while ray.util.list_named_actors(all_namespaces=True):
        assert time.monotonic() < deadline
        time.sleep(0.1)
