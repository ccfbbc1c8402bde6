"""Limits on steps count from the first step on, or after the time that loading may take."""

from __future__ import annotations

import pytest

from windlass.compat.olmo_core.launch_config import StepWatch, Stuck

STEP = b"2026-01-01 [olmo_core.train.trainer:120, rank0] INFO [step=12/100,epoch=1]"


def watch(timeout_s: float | None = None, soft_s: float | None = None) -> tuple[StepWatch, list[str]]:
    told: list[str] = []
    return StepWatch(timeout_s=timeout_s, soft_s=soft_s, tell=told.append), told


def test_after_a_step_the_limit_holds() -> None:
    steps, _ = watch(timeout_s=10)
    steps.hear(STEP, 100)
    steps.hear(b"words without a step=1", 105)
    steps.look(110)
    with pytest.raises(Stuck, match="no step for 11 s"):
        steps.look(111)


def test_before_the_first_step_an_hour_is_given() -> None:
    steps, _ = watch(timeout_s=10)
    steps.look(5000)
    steps.hear(b"loading", 100)
    steps.look(3700)
    with pytest.raises(Stuck):
        steps.look(3701)


def test_the_soft_limit_warns_once_an_hour() -> None:
    steps, told = watch(soft_s=10)
    steps.hear(STEP, 0)
    for now in (5, 11, 100, 3000, 3700):
        steps.look(now)
    assert told == ["warning: no step for 11 s", "warning: no step for 3700 s"]


def test_without_limits_nothing_happens() -> None:
    steps, told = watch()
    steps.hear(STEP, 0)
    steps.look(1e9)
    assert told == []
