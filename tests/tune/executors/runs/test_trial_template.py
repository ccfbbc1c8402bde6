from __future__ import annotations

from pathlib import Path

import pytest

from windlass import Options
from windlass.core.errors import PreconditionError, SpecError, UnreachableError
from windlass.core.names import is_run_id
from windlass.launcher.prepare import Prepared, prepare_file
from windlass.runs.home import Home
from windlass.tune.executors.protocol import AttemptEnded, AttemptOutcome, Fit, Halt, SlotJoined, StartAttempt, Work
from windlass.tune.executors.runs import executor as executor_module
from windlass.tune.executors.runs.executor import RunsExecutor
from windlass.tune.executors.runs.trial_template import TrialTemplate, capacity_of, needed, read_trial_template
from windlass.tune.trial import ONE_CPU

TEXT = """\
name: exp
params: {lr: 0.1}
tasks:
  train: {run: "python t.py ${params.lr}", nodes: 2, cpus: 0.5}
sweep: {metric: loss, mode: min, space: {lr: {uniform: [0, 1]}}}
"""


@pytest.fixture
def prepared(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    del home
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("WINDLASS_GPUS", "")
    (tmp_path / "exp.yaml").write_text(TEXT)
    return prepare_file(tmp_path / "exp.yaml", (), Options(allow_dirty=True))


def test_a_blueprint_is_read_back(prepared: Prepared, tmp_path: Path) -> None:
    made = TrialTemplate.of(prepared, "hill")
    made.write(tmp_path)
    assert read_trial_template(tmp_path) == made
    assert "sweep" not in made.plan.experiment


def test_a_damaged_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(PreconditionError) as caught:
        read_trial_template(tmp_path)
    assert caught.value.code == "run-damaged"
    (tmp_path / "experiment.json").write_text('{"sweep": 1}')
    with pytest.raises(PreconditionError):
        read_trial_template(tmp_path)


def test_ids_of_runs_follow_from_trial_and_attempt(prepared: Prepared) -> None:
    made, other = TrialTemplate.of(prepared, "hill"), TrialTemplate.of(prepared, "hill")
    assert made.run_id("00001", 1) == made.run_id("00001", 1)
    ids = {made.run_id(f"{trial:05d}", attempt) for trial in range(100) for attempt in range(1, 4)}
    assert len(ids) == 300
    assert all(map(is_run_id, ids))
    assert made.run_id("00001", 1) != other.run_id("00001", 1)


def test_a_trial_is_the_plan_with_other_values(prepared: Prepared) -> None:
    made = TrialTemplate.of(prepared, "hill")
    trial = made.prepared(("params.lr=0.5", "tasks.train.nodes=3"), Home.default(), trial="00007")
    assert trial.plan.tasks[0].argv[-1].endswith("t.py 0.5")
    assert trial.plan.tasks[0].shape.nodes == 3
    assert trial.plan.pins == prepared.plan.pins
    assert trial.experiment.context.group == "hill"
    assert "trial 00007 of sweep hill" in trial.plan.notes


def test_the_users_own_group_stays(prepared: Prepared, tmp_path: Path) -> None:
    (tmp_path / "exp.yaml").write_text(TEXT + "context: {group: mine}\n")
    own = prepare_file(tmp_path / "exp.yaml", (), Options(allow_dirty=True))
    assert TrialTemplate.of(own, "hill").prepared((), Home.default()).experiment.context.group == "mine"


def test_a_refused_value_has_the_planners_words(prepared: Prepared) -> None:
    with pytest.raises(SpecError, match="nodes"):
        TrialTemplate.of(prepared, "hill").prepared(("tasks.train.nodes=none",), Home.default())


def test_what_a_trial_takes(prepared: Prepared) -> None:
    assert needed(prepared.plan) == {"CPU": 1.0}
    assert capacity_of(TrialTemplate.of(prepared, "hill")) >= 1


def make_executor(prepared: Prepared, folder: Path, num_slots: int) -> RunsExecutor:
    TrialTemplate.of(prepared, "hill").write(folder)
    executor = RunsExecutor()
    executor.open(Work(trainable=print, name="hill", folder=str(folder), storage="", num_slots=num_slots))
    assert [type(event) for event in executor.poll(0)] == [SlotJoined]
    return executor


def start(trial: str, **config: object) -> StartAttempt:
    return StartAttempt(trial=trial, attempt=1, config=config, resources=ONE_CPU)


def test_room_is_the_sweeps_concurrency(prepared: Prepared, tmp_path: Path) -> None:
    executor = make_executor(prepared, tmp_path, 1)
    assert executor.room(ONE_CPU).fit is Fit.NOW
    executor.start(start("00000", lr=1))
    room = executor.room(ONE_CPU)
    assert (room.fit, room.why) == (Fit.LATER, "1 run is active, the limit of the sweep")


def test_a_halt_before_the_launch_launches_nothing(prepared: Prepared, tmp_path: Path) -> None:
    executor = make_executor(prepared, tmp_path, 1)
    executor.start(start("00000", lr=1))
    executor.send(Halt(trial="00000", attempt=1))
    assert executor.poll(0) == [AttemptEnded(trial="00000", attempt=1, how=AttemptOutcome.HALTED)]
    assert list(Home.default().runs.iterdir()) == []


def test_a_trial_that_the_planner_refuses_has_failed(prepared: Prepared, tmp_path: Path) -> None:
    executor = make_executor(prepared, tmp_path, 1)
    executor.start(StartAttempt(trial="00000", attempt=1, config={"tasks.train.nodez": 2}, resources=ONE_CPU))
    (ended,) = executor.poll(0)
    assert isinstance(ended, AttemptEnded)
    assert (ended.how, ended.kind) == (AttemptOutcome.FAILED, "SpecError")
    assert "did you mean `nodes`" in ended.error


def test_no_run_is_found_where_none_was_launched(prepared: Prepared, tmp_path: Path) -> None:
    executor = make_executor(prepared, tmp_path, 1)
    assert executor.reattach({"00000": 1}) == {}


def test_a_place_that_does_not_answer_is_waited_for(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UnreachableError("cannot reach lab")

    monkeypatch.setattr(executor_module, "start_run", refuse)
    executor = make_executor(prepared, tmp_path, 2)
    executor.start(start("00000", lr=1))
    assert executor.poll(0) == []
    assert (executor.room(ONE_CPU).fit, executor.room(ONE_CPU).why) == (Fit.LATER, "cannot reach lab")
    assert executor.waiting_for() == "cannot reach lab"
    executor.send(Halt(trial="00000", attempt=1))
    assert executor.poll(0) == [AttemptEnded(trial="00000", attempt=1, how=AttemptOutcome.HALTED)]
