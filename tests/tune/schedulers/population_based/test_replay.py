"""A schedule found by population based training: read off a journal or Ray's file, and run again by one trial."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.tune.schedulers.fake_sweep import FakeSweep
from windlass.core.errors import NotFoundError, UsageError
from windlass.record.frames import Record, encode
from windlass.tune.folder import SweepFolder
from windlass.tune.schedulers import PopulationBasedTrainingReplay, SchedulerDecision, read_policy
from windlass.tune.schedulers.population_based.policy import schedule_of


def suggested(trial: str, lr: float) -> tuple[str, dict[str, Any]]:
    return "trial-suggested", {"trial": trial, "config": {"lr": lr}, "assigned": {"lr": lr}}


def reported(trial: str, iteration: int, *exploits: tuple[str, str, int, float]) -> tuple[str, dict[str, Any]]:
    acts = [
        {"act": "exploit", "trial": one, "source": {"trial": of, "iteration": at, "path": "p"}, "config": {"lr": lr}}
        for one, of, at, lr in exploits
    ]
    return "trial-reported", {"trial": trial, "metrics": {"training_iteration": iteration}, "acts": acts}


HISTORY = [
    suggested("00000", 1.0),
    suggested("00001", 2.0),
    suggested("00002", 3.0),
    reported("00001", 4),
    reported("00000", 5, ("00000", "00001", 4, 2.5)),  # 0 goes on as 1 was at 4
    reported("00001", 8, ("00001", "00002", 7, 9.9)),  # overwritten below
    reported("00002", 10, ("00002", "00000", 9, 2.7)),  # 2 goes on as 0 was at 9
    reported("00001", 12, ("00001", "00002", 11, 2.9)),  # 1 goes on as 2 was at 11
]


@pytest.fixture
def sweep_folder(tmp_path: Path) -> Path:
    folder = SweepFolder(tmp_path)
    folder.journal.mkdir()
    lines = [
        encode(Record(writer="head", seq=number, at=0.0, kind=kind, data=data))
        for number, (kind, data) in enumerate(HISTORY, 1)
    ]
    folder.head_journal.write_bytes(b"".join(lines))
    return tmp_path


def test_a_trials_schedule_goes_through_all_that_it_was_a_clone_of(sweep_folder: Path) -> None:
    rows = read_policy(sweep_folder, "1")
    assert [json.loads(row.to_line()) for row in rows] == [
        ["00000", "00001", 5, 4, {"lr": 2.0}, {"lr": 2.5}],
        ["00002", "00000", 10, 9, {"lr": 2.5}, {"lr": 2.7}],
        ["00001", "00002", 12, 11, {"lr": 2.7}, {"lr": 2.9}],
    ]
    assert schedule_of(rows) == ({"lr": 2.0}, [(4, {"lr": 2.5}), (9, {"lr": 2.7}), (11, {"lr": 2.9})])


def test_a_file_of_rays_gives_the_schedule_that_ray_reads_off_it(tmp_path: Path) -> None:
    rows = [
        ["x", "y", 1, 1, {"lr": 9.0}, {"lr": 9.5}],  # belongs to a chain that was overwritten
        ["b", "a", 5, 4, {"lr": 1.0}, {"lr": 1.2}],
        ["c", "b", 9, 8, {"lr": 1.2}, {"lr": 1.4}],
    ]
    path = tmp_path / "pbt_policy_3.txt"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    replay = PopulationBasedTrainingReplay(path)
    assert (replay.config, replay.changes) == ({"lr": 1.0}, [(4, {"lr": 1.2}), (8, {"lr": 1.4})])
    pytest.importorskip("ray", reason="needs ray")
    from ray.tune.schedulers import PopulationBasedTrainingReplay as Theirs

    theirs = Theirs(str(path))
    assert (theirs.config, theirs._policy) == (replay.config, replay.changes)


def test_the_trial_changes_its_configuration_at_the_same_iterations(sweep_folder: Path) -> None:
    sweep, replay = FakeSweep(), PopulationBasedTrainingReplay(sweep_folder, trial=1)
    trial = sweep.add()
    replay.on_add(sweep, trial)
    seen = [trial.config["lr"]]
    assert replay.credit(sweep, trial) == 4
    for iteration in range(1, 14):
        if iteration not in (5, 10, 12):
            assert trial.status.value in ("PENDING", "RUNNING")
        if trial.id not in sweep.running:
            assert replay.choose(sweep) is trial
            sweep.start(trial)
        verdict = sweep.report(replay, trial, {"training_iteration": iteration})
        if verdict.decision is SchedulerDecision.NOOP:
            assert trial.restore_from is not None
            assert (trial.restore_from.trial, trial.restore_from.iteration) == (trial.id, iteration)
            seen.append(trial.config["lr"])
    assert seen == [2.0, 2.5, 2.7, 2.9]
    assert replay.credit(sweep, trial) == 1000


def test_a_second_trial_is_refused() -> None:
    sweep, replay = FakeSweep(), PopulationBasedTrainingReplay(config={"lr": 1}, changes=[])
    first, second = sweep.add(), sweep.add()
    replay.on_add(sweep, first)
    replay.on_add(sweep, first)  # back after an error
    with pytest.raises(UsageError) as caught:
        replay.on_add(sweep, second)
    assert caught.value.code == "invalid-value"


def test_what_cannot_be_replayed_is_named(sweep_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no policy at"):
        PopulationBasedTrainingReplay(tmp_path / "none.txt")
    with pytest.raises(UsageError, match="is a sweep: add the trial"):
        PopulationBasedTrainingReplay(sweep_folder)
    with pytest.raises(NotFoundError, match="has no trial 00009"):
        PopulationBasedTrainingReplay(sweep_folder, trial=9)
    bad = tmp_path / "bad.txt"
    bad.write_text("[1, 2]\n")
    with pytest.raises(UsageError, match=r"bad\.txt:1 is not a row of a PBT policy") as caught:
        PopulationBasedTrainingReplay(bad)
    assert caught.value.code == "no-policy"
    with pytest.raises(UsageError, match="needs either `policy_file` or `changes`"):
        PopulationBasedTrainingReplay()
    with pytest.raises(UsageError, match="the policy contains no changes, and the trial has no configuration"):
        PopulationBasedTrainingReplay(changes=[]).on_add(FakeSweep(), FakeSweep().add())
