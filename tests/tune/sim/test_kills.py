"""The head is killed at every record of the journal, and the sweep goes on as if it had not been."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tune.sim.sweeps import Killer, Rising, Sweep, check_promises, decisions, settings, world
from windlass.tune.schedulers import (
    FIFO,
    AsyncHyperBandScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    SweepScheduler,
)
from windlass.tune.schedulers.asha_promotion import PromotionASHA
from windlass.tune.space.primitives import uniform

pytestmark = pytest.mark.sim

TIME: dict[str, Any] = {"time_attr": "training_iteration"}


def _pbt(*, synch: bool) -> SweepScheduler:
    return PopulationBasedTraining(
        **TIME, perturbation_interval=2, hyperparam_mutations={"x": uniform(0.0, 1.0)}, synch=synch
    )


SCHEDULERS: dict[str, Callable[[], SweepScheduler]] = {
    "fifo": FIFO,
    "asha": lambda: AsyncHyperBandScheduler(**TIME, max_t=9, reduction_factor=2),
    "promotion": lambda: PromotionASHA(**TIME, max_t=9, reduction_factor=2),
    "hyperband": lambda: HyperBandScheduler(**TIME, max_t=9),
    "median": lambda: MedianStoppingRule(**TIME, grace_period=2, min_samples_required=2),
    "pbt": lambda: _pbt(synch=False),
    "pbt-synch": lambda: _pbt(synch=True),
}


def _sweep(
    folder: Path, scheduler: Callable[[], SweepScheduler], *, num_slots: int = 2, outlives: bool = True
) -> Sweep:
    return Sweep(
        folder=folder,
        world=world(1, num_slots, Rising(5), outlives_heads=outlives, checkpoint_every=2),
        scheduler=scheduler,
        settings=settings(num_samples=5),
    )


@pytest.mark.parametrize(
    ("name", "before"), [*((name, False) for name in SCHEDULERS), ("asha", True), ("hyperband", True), ("pbt", True)]
)
def test_workers_outlive_heads_and_every_decision_is_the_same(
    name: str, before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _sweep(tmp_path / "whole", SCHEDULERS[name], num_slots=3)
    assert whole.run().is_over
    expected = decisions(whole.records())
    num_records = len(whole.records())
    assert num_records > 30
    for at in range(1, num_records):
        sweep = _sweep(tmp_path / str(at), SCHEDULERS[name], num_slots=3)
        assert sweep.run_with_kills([Killer(at=at, before=before)], monkeypatch).is_over
        assert decisions(sweep.records()) == expected, f"killed at record {at}"
        check_promises(sweep)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_workers_die_with_heads_and_at_concurrency_1_every_decision_is_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _sweep(tmp_path / "whole", SCHEDULERS[name], num_slots=1, outlives=False)
    assert whole.run().is_over
    expected = decisions(whole.records())
    for at in range(1, len(whole.records())):
        sweep = _sweep(tmp_path / str(at), SCHEDULERS[name], num_slots=1, outlives=False)
        assert sweep.run_with_kills([Killer(at=at)], monkeypatch).is_over
        assert decisions(sweep.records()) == expected, f"killed at record {at}"
        check_promises(sweep)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_twenty_heads_in_a_row_are_killed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _sweep(tmp_path / "whole", SCHEDULERS[name], num_slots=3)
    whole.run()
    sweep = _sweep(tmp_path / "killed", SCHEDULERS[name], num_slots=3)
    assert sweep.run_with_kills([Killer(at=3 + 7 * number) for number in range(20)], monkeypatch).is_over
    assert decisions(sweep.records()) == decisions(whole.records())
    check_promises(sweep)
