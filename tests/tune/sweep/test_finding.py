from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tune.sweeps import bowl, here, quiet
from windlass import tune
from windlass.core.clock import FakeClock
from windlass.core.errors import NotFoundError, PreconditionError, UsageError
from windlass.runs.home import Home
from windlass.spec import Sweep
from windlass.tune.controller.restore import Extension
from windlass.tune.controller.settings import Resume
from windlass.tune.sweep import head
from windlass.tune.sweep.__main__ import main as head_main
from windlass.tune.sweep.finding import find_sweep, has_head, list_sweeps, sweep_names
from windlass.tune.sweep.handle import SweepHandle
from windlass.tune.sweep.head import find_trainable
from windlass.tune.sweep.pending_requests import read_pending_requests, write_pending_requests
from windlass.tune.sweep.record import SweepRecord, read_record

SWEEP = Sweep(metric=("loss",), mode=("min",), space={"lr": {"uniform": [0, 1]}})


def make(home: Path, *names: str) -> Home:
    for at, name in enumerate(names):
        folder = home / "sweeps" / name
        folder.mkdir(parents=True)
        SweepRecord(name=name, sweep=SWEEP, created_at=float(at)).write(folder)
        os.utime(folder, (at, at))
    return Home(home)


def test_sweeps_are_found_by_name_beginning_end_and_age(home: Path) -> None:
    found = make(home, "hill-aaaa", "hill-bbbb", "dale-cccc")
    (home / "sweeps" / "no-sweep").mkdir()
    assert sweep_names(found) == ["dale-cccc", "hill-aaaa", "hill-bbbb"]
    assert find_sweep("hill-bbbb", found).name == "hill-bbbb"
    assert find_sweep("dale", found).name == "dale-cccc"
    assert find_sweep("bbbb", found).name == "hill-bbbb"
    assert find_sweep("last", found).name == "dale-cccc"
    assert find_sweep(str(home / "sweeps" / "hill-aaaa"), found).name == "hill-aaaa"


def test_what_is_not_one_sweep_is_refused(home: Path) -> None:
    found = make(home, "hill-aaaa", "hill-bbbb")
    with pytest.raises(UsageError, match="matches 2 sweeps: hill-aaaa, hill-bbbb"):
        find_sweep("hill", found)
    with pytest.raises(NotFoundError) as caught:
        find_sweep("hill-aaab", found)
    assert caught.value.hint == "did you mean `hill-aaaa`?"
    with pytest.raises(NotFoundError):
        find_sweep("", found)


def test_a_sweep_that_no_head_has_begun(home: Path) -> None:
    (row,) = list_sweeps(make(home, "hill"))
    assert (row.name, row.state, row.counts, has_head(row.folder)) == ("hill", "", {}, False)
    with pytest.raises(NotFoundError):
        SweepHandle(row.folder).history  # noqa: B018 - it is the reading that raises


def test_waiting_for_a_sweep_that_no_process_controls_ends_with_an_error(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row,) = list_sweeps(make(home, "hill"))
    monkeypatch.setattr("windlass.tune.sweep.handle.time", FakeClock())
    with pytest.raises(PreconditionError, match="sweep hill has no head") as caught:
        SweepHandle(row.folder).wait()
    assert caught.value.code == "sweep-no-head"


def test_a_record_is_read_back_and_a_damaged_one_named(home: Path) -> None:
    make(home, "hill")
    folder = home / "sweeps" / "hill"
    assert read_record(folder).sweep == SWEEP
    (folder / "sweep.json").write_text("{}")
    with pytest.raises(PreconditionError) as caught:
        read_record(folder)
    assert caught.value.code == "run-damaged"
    (folder / "sweep.json").unlink()
    with pytest.raises(PreconditionError) as caught:
        read_record(folder)
    assert caught.value.code == "sweep-not-declared"


def test_a_head_that_dies_before_its_journal_has_a_wish_leaves_it_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "home" / "sweeps" / "s"
    folder.mkdir(parents=True)
    write_pending_requests(folder, None, None)
    assert read_pending_requests(folder) == {}
    resume, extend = Resume(errored="restart"), Extension(settings={"num_samples": 9})
    write_pending_requests(folder, resume, extend)
    asked: list[dict[str, Any]] = []

    def dies(folder: Path, *, log: object, on_turn: Callable[[object], None], **more: Any) -> None:
        asked.append(more)
        for _ in range(len(asked) - 1):  # the first one dies before its first turn
            on_turn(None)
        raise KeyboardInterrupt

    monkeypatch.setattr(head, "run_head", dies)
    monkeypatch.setenv("WINDLASS_HOME", "")
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            head_main([str(folder)])
    assert asked == [{"resume": resume, "extend": extend}] * 2 + [{}]


def test_a_wish_that_is_refused_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "home" / "sweeps" / "s"
    folder.mkdir(parents=True)
    write_pending_requests(folder, None, Extension(settings={"num_samples": 9}))

    def refuses(*_: object, **__: object) -> None:
        raise PreconditionError("no", code="in-use")

    monkeypatch.setattr(head, "run_head", refuses)
    monkeypatch.setenv("WINDLASS_HOME", "")
    assert head_main([str(folder)]) != 0
    assert read_pending_requests(folder) == {}


@pytest.mark.parametrize(
    ("name", "says"),
    [("nowhere:A", "no module `nowhere`"), ("json:dump5", "`json` has no `dump5`"), ("json:__name__", "neither")],
)
def test_a_trainable_that_is_none(name: str, says: str) -> None:
    with pytest.raises((NotFoundError, UsageError), match=says):
        find_trainable(name)


def test_a_trainable_by_its_name() -> None:
    assert find_trainable("json:JSONDecoder.decode").__name__ == "decode"


def test_without_a_metric_none_is_the_best(tmp_path: Path) -> None:
    tune.Tuner(bowl, param_space={"x": 1}, tune_config=here(), run_config=quiet(tmp_path)).fit()
    handle = SweepHandle(tmp_path / "sweep")
    with pytest.raises(UsageError, match="has no metric to compare trials by") as caught:
        handle.best()
    assert caught.value.code == "unknown-metric"
    assert "--metric loss" in caught.value.hint
    assert handle.best("loss", "min").id == "00000"
