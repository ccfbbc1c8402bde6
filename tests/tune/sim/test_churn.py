"""Nodes that come and go, workers that die, heads that are killed: every trial is accounted for."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.tune.sim.sweeps import Killer, Rising, Sweep, check_promises, settings, world
from windlass.testing.virtual_trials import VirtualWorld
from windlass.tune.controller.journal.history import read_history
from windlass.tune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining
from windlass.tune.space.primitives import uniform

pytestmark = pytest.mark.sim


def _churn(place: VirtualWorld, rng: Random, *, num_nodes: int, num_slots: int, span_s: float, num_blows: int) -> None:
    """Plan losses of nodes and workers, each node's return, and nothing behind `span_s`."""
    for _ in range(num_blows):
        node, at = f"node{rng.randrange(num_nodes)}", rng.uniform(1.0, span_s)
        if rng.random() < 0.5:
            slot = f"{node}/{rng.randrange(num_slots)}"
            place.at(at, lambda slot=slot: place.lose_worker(slot))  # type: ignore[misc]
        else:
            slots = [f"{node}/{slot}" for slot in range(num_slots)]
            place.at(at, lambda node=node: place.lose(node))  # type: ignore[misc]
            place.at(at + rng.uniform(0.1, 5.0), lambda slots=slots: place.join(*slots))  # type: ignore[misc]


def _asha() -> AsyncHyperBandScheduler:
    return AsyncHyperBandScheduler(time_attr="training_iteration", max_t=9, reduction_factor=3)


def test_512_trials_at_once_on_32_nodes_with_churn(tmp_path: Path) -> None:
    place = world(32, 16, Rising(5), checkpoint_every=2)
    _churn(place, Random(1), num_nodes=32, num_slots=16, span_s=15.0, num_blows=40)
    sweep = Sweep(tmp_path, place, settings=settings(num_samples=640), scheduler=_asha)
    most: list[int] = []
    sweep.on_turn = lambda controller: most.append(len(controller.core.sweep.running))
    assert sweep.run().is_over
    history = read_history(tmp_path)
    assert max(most) == 512
    assert Counter(trial.status.value for trial in history.trials.values()) == {"TERMINATED": 640}
    assert sum(trial.num_interruptions for trial in history.trials.values()) > 100
    assert all(
        [report.iteration for report in trial.reports] == list(range(1, len(trial.reports) + 1))
        for trial in history.trials.values()
    )
    check_promises(sweep)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("outlives", [True, False], ids=["outlive", "die"])
def test_churn_and_killed_heads_with_clones(
    seed: int, outlives: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    place = world(3, 2, Rising(8), checkpoint_every=rng.choice([0, 1, 3]), outlives_heads=outlives)
    _churn(place, rng, num_nodes=3, num_slots=2, span_s=40.0, num_blows=6)
    mutations: dict[str, Any] = {"x": uniform(0.0, 1.0)}
    sweep = Sweep(
        tmp_path,
        place,
        settings=settings(num_samples=8),
        scheduler=lambda: PopulationBasedTraining(
            time_attr="training_iteration", perturbation_interval=2, hyperparam_mutations=mutations
        ),
    )
    killers = [Killer(at=at, before=rng.random() < 0.5) for at in sorted(rng.sample(range(1, 150), 5))]
    assert sweep.run_with_kills(killers, monkeypatch).is_over, f"seed {seed}"
    history = read_history(tmp_path)
    assert {trial.status.value for trial in history.trials.values()} == {"TERMINATED"}
    check_promises(sweep)
    assert sweep.run().is_over
