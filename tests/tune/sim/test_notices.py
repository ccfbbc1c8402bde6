"""Nodes that are taken away with a notice: trials save at once and go on elsewhere, and nothing is counted."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.tune.sim.sweeps import Killer, Rising, Sweep, check_promises, settings, world
from windlass.testing.virtual_trials import VirtualWorld
from windlass.tune.controller.journal import records
from windlass.tune.controller.journal.history import History, read_history
from windlass.tune.results.why import explain
from windlass.tune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining
from windlass.tune.space.primitives import uniform

pytestmark = pytest.mark.sim

NOTICE_S = 6.0


def _sweep(folder: Path, place: VirtualWorld, **more: Any) -> Sweep:
    return Sweep(folder, place, **more)


def _outcome(history: History) -> dict[str, list[float]]:
    return {trial.id: [report.metrics["score"] for report in trial.reports] for trial in history.trials.values()}


def _undisturbed(folder: Path, **more: Any) -> History:
    assert Sweep(folder, world(3, 2), **more).run().is_over
    return read_history(folder)


@pytest.mark.parametrize("outlives", [True, False], ids=["outlive", "die"])
def test_trials_of_a_node_with_a_notice_move_and_repeat_nothing(tmp_path: Path, outlives: bool) -> None:
    place = world(3, 2, outlives_heads=outlives)
    place.at(7.3, lambda: place.notice("node1", NOTICE_S))
    sweep = _sweep(tmp_path / "moved", place)
    assert sweep.run().is_over
    history = read_history(tmp_path / "moved")
    assert _outcome(history) == _outcome(_undisturbed(tmp_path / "still"))
    moved = [trial for trial in history.trials.values() if any(made.decision == "move" for made in trial.decisions)]
    assert len(moved) == 2
    for trial in moved:
        assert (trial.num_failures, trial.num_interruptions) == (0, 0)
        first, second = trial.attempts
        assert (first.host, first.how) == ("node1", "halted")
        assert second.host != "node1"
        assert second.restore is not None
        counted = [report.iteration for report in trial.reports if report.attempt == 1]
        assert second.restore.iteration == counted[-1], "finished work was repeated"
    story = explain(history, moved[0].id)
    assert any("told to save and move by the controller: its node is taken away" in line for line in story)
    assert any("queued again: its machine is taken away" in line for line in story)
    check_promises(sweep)


def test_nothing_starts_on_a_node_that_has_a_notice(tmp_path: Path) -> None:
    place = world(2, 2, Rising(4))
    place.at(2.0, lambda: place.notice("node1", 60.0))
    sweep = _sweep(tmp_path, place, settings=settings(num_samples=16))
    assert sweep.run().is_over
    found = sweep.records()
    noticed = next(index for index, record in enumerate(found) if record.kind == records.SLOT_NOTICED)
    later = [record.data["host"] for record in found[noticed:] if record.kind == records.TRIAL_STARTED]
    assert later
    assert set(later) == {"node0"}
    capacities = [record.data["total"] for record in found if record.kind == records.CAPACITY_CHANGED]
    assert {"CPU": 2.0} in capacities


def test_a_notice_that_comes_too_late_is_no_interruption(tmp_path: Path) -> None:
    place = world(2, 1, Rising(6), checkpoint_every=2)
    place.at(9.0, lambda: place.notice("node1", 0.0))
    sweep = _sweep(tmp_path, place, settings=settings(num_samples=4, max_interruptions=0))
    assert sweep.run().is_over
    history = read_history(tmp_path)
    assert [attempt.how for trial in history.trials.values() for attempt in trial.attempts].count("lost") == 1
    assert all(trial.num_interruptions == 0 for trial in history.trials.values())
    assert {trial.status.value for trial in history.trials.values()} == {"TERMINATED"}


def test_without_a_notice_the_loss_is_an_interruption_and_no_failure(tmp_path: Path) -> None:
    place = world(3, 2, checkpoint_every=2)
    place.at(7.3, lambda: place.lose("node1"))
    sweep = _sweep(tmp_path / "lost", place)
    assert sweep.run().is_over
    history = read_history(tmp_path / "lost")
    assert _outcome(history) == _outcome(_undisturbed(tmp_path / "still"))
    lost = [trial for trial in history.trials.values() if trial.num_interruptions]
    assert len(lost) == 2
    for trial in lost:
        assert trial.num_failures == 0
        reached = [report.iteration for report in trial.reports if report.attempt == 1][-1]
        restore = trial.attempts[1].restore
        assert restore is not None
        assert reached - restore.iteration < 2, "more was repeated than what followed the last checkpoint"


def _asha() -> AsyncHyperBandScheduler:
    return AsyncHyperBandScheduler(time_attr="training_iteration", max_t=9, reduction_factor=3)


def _pbt() -> PopulationBasedTraining:
    mutations: dict[str, Any] = {"x": uniform(0.0, 1.0)}
    return PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=2, hyperparam_mutations=mutations
    )


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("scheduler", [_asha, _pbt], ids=["asha", "pbt"])
def test_notices_and_killed_heads(seed: int, scheduler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(seed)
    place = world(3, 2, Rising(8), checkpoint_every=rng.choice([0, 1, 3]), outlives_heads=rng.random() < 0.5)
    for _ in range(4):
        node, at, notice_s = f"node{rng.randrange(3)}", rng.uniform(1.0, 30.0), rng.choice([0.0, 0.5, NOTICE_S])
        slots = [f"{node}/{slot}" for slot in range(2)]
        place.at(at, lambda node=node, notice_s=notice_s: place.notice(node, notice_s))  # type: ignore[misc]
        place.at(at + notice_s + 3.0, lambda slots=slots: place.join(*slots))  # type: ignore[misc]
    sweep = _sweep(tmp_path, place, scheduler=scheduler, settings=settings(max_interruptions=0))
    killers = [Killer(at=at, before=rng.random() < 0.5) for at in sorted(rng.sample(range(1, 150), 4))]
    assert sweep.run_with_kills(killers, monkeypatch).is_over, f"seed {seed}"
    history = read_history(tmp_path)
    assert {trial.status.value for trial in history.trials.values()} == {"TERMINATED"}
    check_promises(sweep)
    assert sweep.run().is_over, "the replay of a sweep with notices differs"
