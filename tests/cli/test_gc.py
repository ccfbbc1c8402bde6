from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Windlass
from tests.cli.test_looking import BAD, GOOD, bad_run, good_run
from tests.runs.journals import RunScript
from windlass.core.files import lock
from windlass.runs.home import Home
from windlass.runs.index import Index


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand-made runs have no plan that a backend could be asked about."""
    monkeypatch.setattr("windlass.launcher.gc.removable.has_processes", lambda run: False)


def environment(home: Path, key: str, age_s: float) -> Path:
    place = home / "cache" / "envs" / key
    (place / "1").mkdir(parents=True)
    (place / "1" / "file").write_text("x" * 5000)
    (place / "complete.json").write_text("{}")
    os.utime(place / "complete.json", (time.time() - age_s,) * 2)
    return place


@pytest.mark.usefixtures("no_processes")
def test_old_runs_go_and_runs_in_motion_stay(windlass: Windlass, home: Path) -> None:
    good = good_run(home)
    bad = bad_run(home)
    live = RunScript(Home(home), "hello-cccccccc").submit().start().close()
    dry = windlass("gc", "--runs", "--older-than", "1d", "--dry-run")
    assert sorted(line.split()[2] for line in dry.out.splitlines()) == ["run", "run"]
    assert good.path.exists()
    content = json.loads(windlass("gc", "--runs", "--older-than", "1d", "--yes", "--json").out)
    assert content["schema"] == "windlass.gc/1"
    assert sorted(Path(each["path"]).name for each in content["removed"]) == [GOOD, BAD]
    assert not good.path.exists()
    assert not bad.path.exists()
    assert live.path.exists()
    assert windlass("gc", "--runs", "--older-than", "1d").err == "nothing to remove\n"


@pytest.mark.usefixtures("no_processes")
def test_an_old_run_whose_output_another_run_reads_stays(windlass: Windlass, home: Path) -> None:
    good = good_run(home)
    user = RunScript(Home(home), "user-cccccccc").submit().start().close()
    pins = {"data": {"x": {"source": f"run:{good.id}/out", "digest": "0"}}}
    (user.path / "plan.json").write_text(json.dumps({"name": "user", "pins": pins}))
    (user.path / "provenance.json").write_text("{}")
    result = windlass("gc", "--runs", "--older-than", "1d", "--yes")
    assert f"kept          run          {good.path}  {user.id} reads data from it\n" in result.out
    assert good.path.exists()


@pytest.mark.usefixtures("no_processes")
def test_without_yes_the_rules_are_only_told(windlass: Windlass, home: Path) -> None:
    good = good_run(home)
    plan = json.loads((good.path / "plan.json").read_text())
    (good.path / "plan.json").write_text(json.dumps({**plan, "experiment": {"retain": {"ttl": "1d"}}}))
    result = windlass("gc")
    assert f"due           run          {good.path}" in result.out
    assert "retain.ttl=1d" in result.out
    assert result.err.splitlines()[-1].startswith("retention rules would free ")
    content = json.loads(windlass("gc", "--json").out)
    assert (content["removed"], [each["path"] for each in content["due"]]) == ([], [str(good.path)])
    assert good.path.exists()
    assert windlass("gc", "--yes", "--dry-run").code == 2
    assert f"removed       run          {good.path}" in windlass("gc", "--yes").out
    assert not good.path.exists()


def test_a_run_whose_processes_cannot_be_asked_about_stays(windlass: Windlass, home: Path) -> None:
    good = good_run(home)
    assert json.loads(windlass("gc", "--runs", "--older-than", "1d", "--yes", "--json").out)["removed"] == []
    assert good.path.exists()


@pytest.mark.usefixtures("no_processes")
def test_young_runs_stay(windlass: Windlass, home: Path) -> None:
    good = good_run(home)
    assert windlass("gc", "--runs", "--older-than", "9999d").err == "nothing to remove\n"
    assert good.path.exists()


def test_environments_that_a_run_may_need_stay(windlass: Windlass, home: Path) -> None:
    needed, unneeded, fresh, busy = (
        environment(home, key, age)
        for key, age in (("k-needed", 9e5), ("k-unneeded", 9e5), ("k-fresh", 10.0), ("k-busy", 9e5))
    )
    bad = bad_run(home)
    (bad.path / "places.json").write_text(json.dumps({"path": [str(needed / "1" / "bin")]}))
    with lock(busy.with_name("k-busy.lock")):
        result = windlass("gc", "--environments")
    assert [path.exists() for path in (needed, unneeded, fresh, busy)] == [True, False, True, True]
    assert f"removed       environment  {unneeded}" in result.out
    assert f"kept          environment  {needed}  {BAD} (failed) may continue with it\n" in result.out
    assert f"{fresh}  used 10s ago\n" in result.out
    assert f"{busy}  it is being built\n" in result.out
    assert result.err.startswith("freed ")


def test_left_overs_of_killed_commands_go(windlass: Windlass, home: Path) -> None:
    runs = Home(home).runs
    dead, young = runs / ".hello-dddddddd.999999999.0a1b2c3d", runs / ".hello-eeeeeeee.999999999.0a1b2c3d"
    trash = runs / ".trash-hello-ffffffff"
    for folder in (dead, young, trash):
        folder.mkdir()
    os.utime(dead, (1.0, 1.0))
    windlass("gc")
    assert [folder.exists() for folder in (dead, young, trash)] == [False, True, False]


def test_indexes_of_homes_that_are_gone_go(windlass: Windlass, home: Path, tmp_path: Path) -> None:
    gone = Home(tmp_path / "gone")
    index, own = Index(gone), Index(Home(home))
    for each in (index, own):
        each.refresh()
        each.close()
    assert f"index        {index.path}" not in windlass("gc", "--dry-run").out
    shutil.rmtree(gone.path)
    assert f"removed       index        {index.path}" in windlass("gc").out
    assert not index.path.exists()
    assert own.path.exists()


def test_reindex_counts(windlass: Windlass, home: Path) -> None:
    good_run(home)
    assert windlass("gc", "--reindex").err == "indexed 1 run\nnothing to remove\n"


@pytest.mark.usefixtures("no_processes")
def test_runs_are_not_removed_unasked(windlass: Windlass, home: Path) -> None:
    good = good_run(home)
    done = windlass("gc", "--runs", "--older-than", "1d")
    assert (done.code, done.out) == (8, "")
    assert "[not-confirmed]" in done.err
    assert done.err.startswith("error: cannot ask to remove 1 run with checkpoints and outputs, ")
    assert (
        "hint: `windlass gc --runs --older-than 1d --dry-run` lists them, `windlass gc --runs --older-than 1d --yes` removes"
        in done.err
    )
    assert windlass("gc", "--runs", "--older-than", "1d", "--dry-run").code == 0
    assert good.path.exists()


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 8), ("", 8)])
def test_a_person_is_asked(
    answer: str, code: int, windlass: Windlass, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = good_run(home)
    monkeypatch.setattr("windlass.cli.verbs.manage.gc._can_answer", lambda: True)
    done = windlass("gc", "--runs", "--older-than", "1d", stdin=f"{answer}\n".encode())
    assert done.code == code
    assert f"  {good.path}  " in done.err
    assert "remove 1 run with checkpoints and outputs, " in done.err
    assert good.path.exists() == (code != 0)
