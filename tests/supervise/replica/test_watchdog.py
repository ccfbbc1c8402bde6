from __future__ import annotations

from windlass.supervise.replica.stall_watch import StallDetector


def stepping(step_s: float, num_steps: int, floor_s: float = 60.0) -> StallDetector:
    watchdog = StallDetector(floor_s)
    for step in range(num_steps):
        watchdog.on_report("step", step, step * step_s)
    return watchdog


def test_code_that_reports_nothing_is_not_watched() -> None:
    assert StallDetector(1.0).verdict(10**6) == ""


def test_no_phase_is_stalled_before_the_floor() -> None:
    watchdog = stepping(0.1, 10)
    assert watchdog.verdict(0.9 + 60.0) == ""
    assert watchdog.verdict(0.9 + 61.0) == "no progress for 61 s in phase step, last step 9"


def test_the_limit_is_ten_times_the_longest_gap_seen() -> None:
    watchdog = stepping(20.0, 5)
    assert watchdog.limit_s("step") == 200.0
    assert watchdog.verdict(80.0 + 200.0) == ""
    assert watchdog.verdict(80.0 + 201.0) != ""


def test_phases_are_learned_one_by_one() -> None:
    watchdog = stepping(1.0, 5)
    watchdog.on_report("save", 5, 5.0)
    assert watchdog.verdict(5.0 + 1800.0) == ""
    assert watchdog.verdict(5.0 + 1801.0) == "no progress for 1801 s in phase save, last step 5"


def test_the_first_start_may_compile_for_half_an_hour() -> None:
    watchdog = StallDetector(60.0)
    watchdog.on_report("init", -1, 0.0)
    assert watchdog.verdict(1800.0) == ""
    assert watchdog.verdict(1801.0) == "no progress for 1801 s in phase init"


def test_any_report_ends_the_silence() -> None:
    watchdog = stepping(1.0, 5)
    watchdog.on_report("step", 5, 300.0)
    assert watchdog.verdict(310.0) == ""


def test_slow_steps_are_not_stalled_before_three_gaps_are_known() -> None:
    for num_steps in (1, 2, 3):
        watchdog = stepping(90.0, num_steps)
        assert watchdog.verdict((num_steps - 1) * 90.0 + 1700.0) == ""
    assert stepping(90.0, 4).limit_s("step") == 900.0


def test_a_low_floor_hears_of_a_first_stall_sooner() -> None:
    watchdog = stepping(0.1, 2, floor_s=2.0)
    assert watchdog.limit_s("step") == 60.0
    assert watchdog.limit_s("save") == 1800.0


def test_a_long_gap_raises_even_the_first_limit() -> None:
    assert stepping(20.0, 2, floor_s=2.0).limit_s("step") == 200.0
