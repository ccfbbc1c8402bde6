from __future__ import annotations

import math
from pathlib import Path

from tests.runs.journals import RunScript, home_in
from windlass.core.clock import FakeClock
from windlass.runs.metrics import last, names, series


def make(folder: Path) -> tuple[RunScript, FakeClock]:
    clock = FakeClock(1000.0)
    return RunScript(home_in(folder), "exp-abcdefgh", clock), clock


def values(script: RunScript, name: str = "loss") -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in series(script.run, name)]


def test_a_series_is_sorted_by_step_with_its_times(tmp_path: Path) -> None:
    run, clock = make(tmp_path)
    for step in (2, 1, 3):
        run.metric("loss", step, step / 10)
        clock.advance(1.0)
    assert series(run.run, "loss") == [(1, 0.1, 1001.0), (2, 0.2, 1000.0), (3, 0.3, 1002.0)]
    newest = series(run.run, "loss")[-1]
    assert (newest.step, newest.value, newest.time) == (3, 0.3, 1002.0)


def test_what_an_attempt_rolled_back_is_left_out(tmp_path: Path) -> None:
    run, _ = make(tmp_path)
    for step in range(1, 6):
        run.metric("loss", step, 1.0, attempt=1)
    for step in (3, 4):
        run.metric("loss", step, 2.0, attempt=2)
    assert values(run) == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]


def test_the_lowest_rank_speaks_for_the_gang_and_its_last_word_counts(tmp_path: Path) -> None:
    run, _ = make(tmp_path)
    run.metric("loss", 1, 3.0, rank=1).metric("loss", 1, 1.0, rank=0).metric("loss", 1, 2.0, rank=0)
    assert values(run) == [(1, 2.0)]


def test_values_without_a_step_are_all_kept(tmp_path: Path) -> None:
    run, _ = make(tmp_path)
    run.metric("x", -1, 1.0).metric("x", -1, 2.0)
    assert values(run, "x") == [(-1, 1.0), (-1, 2.0)]


def test_not_a_number_and_infinity_come_back(tmp_path: Path) -> None:
    run, _ = make(tmp_path)
    run.metric("loss", 1, "nan").metric("loss", 2, "-inf")
    first, second = values(run)
    assert math.isnan(first[1])
    assert second[1] == -math.inf


def test_names_and_newest_values(tmp_path: Path) -> None:
    run, clock = make(tmp_path)
    run.metric("loss", 1, 0.5).metric('eval/"acc"', 1, 0.9)
    clock.advance(5.0)
    run.metric("loss", 2, 0.4)
    assert names(run.run) == ['eval/"acc"', "loss"]
    assert last(run.run) == {'eval/"acc"': (1, 0.9, 1000.0), "loss": (2, 0.4, 1005.0)}
    assert values(run, 'eval/"acc"') == [(1, 0.9)]


def test_only_one_task(tmp_path: Path) -> None:
    run, _ = make(tmp_path)
    run.metric("loss", 1, 0.5)
    run.task = "score"
    run.metric("loss", 1, 0.7)
    assert [value for _, value, _ in series(run.run, "loss", "score")] == [0.7]
    assert names(run.run, "nothing") == []
    assert len(series(run.run, "loss")) == 2


def test_a_damaged_line_is_passed_over(tmp_path: Path) -> None:
    run, _ = make(tmp_path)
    run.metric("loss", 1, 0.5).metric("loss", 2, 0.5)
    path = next(run.run.journal.glob("*report*"))
    content = bytearray(path.read_bytes())
    content[60] ^= 1
    path.write_bytes(bytes(content))
    assert values(run) == [(2, 0.5)]


def test_no_journal(tmp_path: Path) -> None:
    run, _ = make(tmp_path)
    assert last(run.run) == {}
    assert series(run.run, "loss") == []
