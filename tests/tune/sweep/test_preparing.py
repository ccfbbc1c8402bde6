from __future__ import annotations

from typing import Any

import pytest

from windlass.core.errors import SpecError
from windlass.sites.profile import FileSystem, Profile
from windlass.spec import Sweep
from windlass.spec.sweep import KeptBySweep, SweepLimits
from windlass.tune.schedulers import create_scheduler
from windlass.tune.sweep.declared import awaited_metrics, declared_tuning
from windlass.tune.sweep.preparing import check_keep


def test_checkpoints_behind_ssh_cannot_be_dropped_by_a_head_here() -> None:
    far = Profile(name="far", ssh="login", fs=FileSystem(shared="/shared"))
    near = Profile(name="near", fs=FileSystem(shared="/shared"))
    keeping = Sweep(metric=("loss",), mode=("min",), samples=2, space={}, keep=KeptBySweep(best=1))
    with pytest.raises(SpecError, match="is not supported at far, which is reached over ssh"):
        check_keep(keeping, far, {})
    check_keep(keeping, near, {})
    check_keep(keeping, None, {})
    check_keep(Sweep(metric=("loss",), mode=("min",), samples=2, space={}), far, {})


@pytest.mark.parametrize(
    ("scheduler", "awaited"),
    [
        (create_scheduler("fifo"), ["loss"]),
        (create_scheduler("asha"), ["loss"]),
        (create_scheduler("asha", time_attr="epoch"), ["loss", "epoch"]),
        (create_scheduler("resource_changing", base_scheduler=create_scheduler("asha", time_attr="epoch")), ["loss", "epoch"]),
        (create_scheduler("median_stopping_rule"), ["loss"]),
    ],
)  # fmt: skip
def test_a_report_of_a_run_has_the_time_that_its_code_counts(scheduler: Any, awaited: list[str]) -> None:
    sweep = Sweep(metric=("loss",), mode=("min",), samples=2, space={})
    assert awaited_metrics(sweep, scheduler) == awaited


def test_every_limit_of_a_file_is_the_tuners() -> None:
    limits = SweepLimits(time=60.0, trials=7, gpu_hours=2.0, cost=40.0, prices={"GPU": 2.5})
    found = declared_tuning(Sweep(metric=("loss",), mode=("min",), samples=2, space={}, limits=limits))
    assert (found.budget_s, found.max_trials, found.gpu_hours) == (60.0, 7, 2.0)
    assert (found.max_cost, found.prices) == (40.0, {"GPU": 2.5})
