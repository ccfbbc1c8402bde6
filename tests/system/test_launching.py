from __future__ import annotations

import json

import pytest

from tests.system.stage import Stage
from windlass import Options, Run
from windlass.core.files import lock
from windlass.launcher import start
from windlass.launcher.prepare import prepare_file
from windlass.record.state import State
from windlass.runs.store import create

pytestmark = pytest.mark.system


def left_behind(stage: Stage) -> Run:
    """A run whose launching command died before it had furnished the folder."""
    path = stage.experiment(stage.task("echo never"))
    plan = prepare_file(path, (), Options(allow_dirty=True), home=stage.home).plan
    return Run(create(stage.home, "play-abcdefgh", {"plan.json": json.dumps(plan.to_data()).encode()}), stage.home)


def test_a_launch_that_died_early_ends_with_a_verdict(stage: Stage) -> None:
    run = left_behind(stage)
    assert run.state is State.PLANNED
    assert run.reconcile() == ["the command that launched it ended before all files were staged"]
    assert str(run.state) == "failed"
    assert run.facts.cause == "start-failed"
    assert run.facts.name == "play"
    assert run.reconcile() == []


def test_a_launch_that_goes_on_is_left_alone(stage: Stage) -> None:
    run = left_behind(stage)
    with lock(stage.home.runs / f".{run.id}.launching"):
        assert run.reconcile() == []
        assert run.state is State.PLANNED


@pytest.mark.parametrize("where", ["announce", "intend", "submit_all"])
def test_a_launch_that_died_late_is_taken_over(stage: Stage, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def die(*_: object, **__: object) -> None:
        raise SystemExit(where)

    with monkeypatch.context() as patch:
        patch.setattr(start, where, die)
        with pytest.raises(SystemExit):
            stage.launch(stage.task("echo done"))
    (run,) = stage.runs("play")
    assert stage.end(run) is State.SUCCEEDED
    assert stage.log(run) == "done\n"
    assert run.facts.task("main").newest_job == 1
    assert not list(stage.home.runs.glob(".*.launching"))
