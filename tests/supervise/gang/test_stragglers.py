from __future__ import annotations

from windlass.supervise.gang.stragglers import StepTimer, Stragglers


def paced(*times: float) -> StepTimer:
    step_timer = StepTimer()
    for step, at in enumerate(times):
        step_timer.on_step(step, at)
    return step_timer


def test_a_step_time_is_the_median_of_the_last_steps() -> None:
    assert paced(0, 1, 2, 3, 4).step_s == 0.0
    assert paced(0, 1, 2, 3, 4, 5).step_s == 1.0
    assert paced(0, 1, 2, 3, 4, 5, 65).step_s == 1.0


def test_steps_that_are_not_reported_one_by_one_count_alike_and_repeats_not_at_all() -> None:
    step_timer = StepTimer()
    for step in range(0, 60, 10):
        step_timer.on_step(step, 2.0 * step)
        step_timer.on_step(step, 2.0 * step + 1.0)
    assert step_timer.step_s == 2.0


def test_old_steps_are_forgotten() -> None:
    step_timer = StepTimer()
    for step in range(100):
        step_timer.on_step(step, step if step < 50 else 50 + 3.0 * (step - 50))
    assert step_timer.step_s == 3.0


def test_a_replica_far_slower_than_the_others_is_reported_once() -> None:
    stragglers = Stragglers(2.0)
    assert [stragglers.look(1, rank, 1.0) for rank in range(3)] == ["", "", ""]
    assert stragglers.look(1, 3, 1.9) == ""
    assert stragglers.look(1, 3, 4.2) == "takes 4.2 s per step, 4.2 times the 1 s of the others"
    assert stragglers.look(1, 3, 5.0) == ""
    assert stragglers.look(2, 3, 5.0) != ""


def test_a_gang_of_one_and_silent_replicas_have_no_stragglers() -> None:
    stragglers = Stragglers(2.0)
    assert stragglers.look(1, 0, 9.0) == ""
    stragglers.look(1, 1, 0.0)
    assert stragglers.look(1, 0, 9.0) == ""
