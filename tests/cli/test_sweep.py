"""`windlass sweep`: what it refuses, and one sweep seen through every verb."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Windlass

CLIMB = """
import sys
from windlass import report
for step in range(1, 4):
    report.metrics({"score": float(sys.argv[1]) * step, "cost": step}, step=step)
if float(sys.argv[1]) > 0.8:
    raise ValueError("too steep")
"""
SWEEP: dict[str, Any] = {"metric": "score", "mode": "max", "space": {"lr": {"grid": [0.5, 0.2, 0.9]}}}


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    monkeypatch.setenv("WINDLASS_GPUS", "")
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "climb.py").write_text(CLIMB)
    monkeypatch.chdir(folder)
    return folder


def write(code: Path, sweep: dict[str, Any] | None, **spec: Any) -> None:
    command = f"{sys.executable} -u climb.py ${{params.lr}}"
    spec = {"name": "climb", "params": {"lr": 0.1}, "tasks": {"main": {"run": command, "cpus": 1}}, **spec}
    lines = [f"{key}: {json.dumps(value)}" for key, value in spec.items()]
    if sweep is not None:
        lines += ["sweep:", *(f"  {key}: {json.dumps(value)}" for key, value in sweep.items())]
    (code / "exp.yaml").write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("change", "code_word", "says"),
    [
        ({"space": {"lr": {"unifrom": [0, 1]}}}, "invalid-space", "did you mean `uniform`"),
        ({"space": {"lr": {"uniform": [1, 0]}}}, "invalid-space", "lr"),
        ({"space": {"learning_rate": {"uniform": [0, 1]}}}, "", "learning_rate"),
        ({"space": {"tasks.main.gpuz": {"choice": [1]}}}, "unknown-key", "did you mean `gpus`"),
        ({"space": {"code.x": {"choice": [1]}}}, "invalid-space", "`code` is the same for all trials"),
        ({"scheduler": "ahsa"}, "unknown-name", "did you mean"),
        ({"scheduler": {"asha": {"max_tt": 9}}}, "unknown-option", "max_t"),
        ({"scheduler": {"asha": {"max_t": 0}}}, "", "max_t"),
        ({"search": "pte"}, "", "tpe"),
        (
            {"scheduler": {"asha": {"metric": "loss", "mode": "min"}}},
            "conflicting-options",
            "the metric is set twice",
        ),
        ({"first": {"lrr": 0.1}}, "searcher-option", "did you mean `lr`"),
        ({"trainable": "nowhere:Trainer"}, "module-not-found", "no module `nowhere`"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_at_its_place(
    windlass: Windlass, code: Path, home: Path, change: dict[str, Any], code_word: str, says: str
) -> None:
    write(code, {**SWEEP, **change})
    result = windlass("sweep", "launch", "exp.yaml", "--allow-dirty")
    assert result.code in (2, 3), result.err
    assert says in result.err, result.err
    assert f"[{code_word}]" in result.err or not code_word, result.err
    assert "exp.yaml:" in result.err, result.err
    assert not (home / "sweeps").exists()
    assert not list((home / "runs").glob("*")) if (home / "runs").exists() else True


def test_a_file_without_a_sweep_is_refused(windlass: Windlass, code: Path) -> None:
    write(code, None)
    result = windlass("sweep", "launch", "exp.yaml", "--allow-dirty")
    assert result.code == 3
    assert "[missing-key]" in result.err
    assert "add `sweep: {metric:" in result.err


def test_a_value_for_what_the_sweep_varies_is_refused(windlass: Windlass, code: Path) -> None:
    write(code, SWEEP)
    refused = windlass("sweep", "launch", "exp.yaml", "--allow-dirty", "params.lr=0.5")
    assert refused.code == 3
    assert "[conflicting-options]" in refused.err
    assert "the sweep varies `params.lr`" in refused.err


def test_a_bad_name_is_refused(windlass: Windlass, code: Path) -> None:
    write(code, SWEEP)
    assert "[invalid-name]" in windlass("sweep", "launch", "exp.yaml", "--allow-dirty", "--name", "A B").err


def test_a_launch_of_such_a_file_is_one_run_and_says_so(windlass: Windlass, code: Path) -> None:
    write(code, SWEEP)
    assert "`windlass sweep launch` starts the sweep" in windlass("plan", "exp.yaml", "--allow-dirty").out


@pytest.mark.parametrize("verb", ["show", "best", "stop", "resume", "export"])
def test_no_such_sweep(windlass: Windlass, home: Path, verb: str) -> None:
    (home / "sweeps" / "hill" / "journal").mkdir(parents=True)
    (home / "sweeps" / "hill" / "journal" / "head.wj").touch()
    more = ["x.csv"] if verb == "export" else []
    result = windlass("sweep", verb, "hull", *more)
    assert result.code == 4
    assert "[sweep-not-found]" in result.err
    assert "did you mean `hill`?" in result.err


def test_several_sweeps_fit(windlass: Windlass, home: Path) -> None:
    for name in ("hill-1", "hill-2"):
        (home / "sweeps" / name / "journal").mkdir(parents=True)
        (home / "sweeps" / name / "journal" / "head.wj").touch()
    result = windlass("sweep", "show", "hill")
    assert (result.code, "[ambiguous-name]" in result.err) == (2, True)


def test_no_sweep_yet(windlass: Windlass) -> None:
    assert "no sweeps yet" in windlass("sweep", "ls").err
    assert json.loads(windlass("sweep", "ls", "--json").out) == {"schema": "windlass.sweeps/1", "sweeps": []}


def test_what_has_no_head_is_followed_no_longer(
    windlass: Windlass, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.tune.views.watching._GONE_S", 0.0)
    journal = home / "sweeps" / "hill" / "journal"
    journal.mkdir(parents=True)
    (journal / "head.wj").touch()
    (journal / "head.json").write_text(json.dumps({"error": "no trial reports `scroe`", "refused": "no trial 77"}))
    followed = windlass("sweep", "show", "hill", "--follow")
    assert followed.code == 0
    assert "its head ended with an error: no trial reports `scroe`" in followed.err
    assert "windlass sweep resume hill   # its head has not started" in followed.err
    assert "a request was rejected: no trial 77" in windlass("sweep", "show", "hill").out


def test_nothing_to_extend_by(windlass: Windlass, home: Path) -> None:
    (home / "sweeps" / "hill" / "journal").mkdir(parents=True)
    (home / "sweeps" / "hill" / "journal" / "head.wj").touch()
    assert "[missing-argument]" in windlass("sweep", "extend", "hill").err
    assert "such as --time 4h" in windlass("sweep", "extend", "hill", "--time", "4 parsecs").err
    assert "such as --stop accuracy=0.95" in windlass("sweep", "extend", "hill", "--stop", "score").err


def test_options_that_exclude_each_other(windlass: Windlass, home: Path) -> None:
    (home / "sweeps" / "hill" / "journal").mkdir(parents=True)
    (home / "sweeps" / "hill" / "journal" / "head.wj").touch()
    both = windlass("sweep", "resume", "hill", "--errored", "--restart-errored")
    assert (both.code, "are mutually exclusive" in both.err) == (2, True)
    both = windlass("sweep", "launch", "exp.yaml", "--detach", "--in-process")
    assert (both.code, "are mutually exclusive" in both.err) == (2, True)


def test_trials_that_are_runs_do_not_fit_into_this_process(windlass: Windlass, code: Path) -> None:
    write(code, SWEEP)
    result = windlass("sweep", "launch", "exp.yaml", "--allow-dirty", "--in-process")
    assert (result.code, "[sweep-unsupported]" in result.err) == (2, True)


@pytest.mark.system
def test_one_sweep_through_every_verb(windlass: Windlass, code: Path, tmp_path: Path) -> None:
    write(code, SWEEP)
    given = ("tasks.main.grace=2s", "sweep.mode=max")
    launched = windlass("sweep", "launch", "exp.yaml", "--allow-dirty", "--name", "hill", *given)
    assert launched.code == 0, launched.err
    assert "hill finished: all trials have ended" in launched.err
    (row,) = json.loads(windlass("sweep", "ls", "--json").out)["sweeps"]
    assert (row["state"], row["trials"], row["best_trial"]) == ("over", {"TERMINATED": 2, "ERROR": 1}, "00002")
    assert "2 done, 1 failed" in windlass("sweep", "ls").out
    shown = windlass("sweep", "show", "hill")
    assert "hill  over" in shown.out
    assert "too steep" in shown.out
    data = json.loads(windlass("sweep", "show", "last", "--json").out)
    assert [trial["status"] for trial in data["trials"]] == ["TERMINATED", "TERMINATED", "ERROR"]
    run = data["trials"][0]["attempts"][0]["run"]
    assert "succeeded" in windlass("show", run).out
    cheapest = json.loads(windlass("sweep", "best", "hill", "--metric", "score", "--mode", "min", "--json").out)
    assert (cheapest["trial"], cheapest["config"]) == ("00001", {"lr": 0.2})
    best = windlass("sweep", "best", "hill").out
    assert "trial 00002  score 2.7" in best
    assert "exp.yaml tasks.main.grace=2s params.lr=0.9" in best, "as it was, what the launch was given included"
    assert "too steep" in windlass("sweep", "why", "hill", "2").out
    assert "[sweep-not-found]" in windlass("sweep", "why", "hill", "77").err
    assert "[unknown-metric]" in windlass("sweep", "best", "hill", "--metric", "scroe").err
    assert "[unknown-metric]" in windlass("sweep", "best", "hill", "--metric", "time_total_s").err
    target = tmp_path / "trials.csv"
    assert windlass("sweep", "export", "hill", str(target)).code == 0
    assert len(target.read_text().splitlines()) == 4
    assert "mkdir -p" in windlass("sweep", "export", "hill", str(tmp_path / "nowhere" / "trials.csv")).err
    picture = tmp_path / "history.svg"
    assert windlass("sweep", "export", "hill", str(picture)).code == 0
    assert picture.read_text().startswith("<?xml")
    assert "[unknown-name]" in windlass("sweep", "export", "hill", str(tmp_path / "story.png")).err
    assert "wrote" in windlass("sweep", "export", "hill", str(tmp_path / "all"), "--pictures", "png").err
    assert (tmp_path / "all" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "--pictures png has no effect" in windlass("sweep", "export", "hill", "x.csv", "--pictures", "png").err
    assert "--reports has no effect" in windlass("sweep", "export", "hill", "all", "--reports").err
    stopped = windlass("sweep", "stop", "hill")
    assert (stopped.code, "hill has already finished" in stopped.err) == (0, True)
    assert "[already-exists]" in windlass("sweep", "launch", "exp.yaml", "--allow-dirty", "--name", "hill").err
    assert windlass("sweep", "resume", "hill").code == 0
    extended = windlass("sweep", "extend", "hill", "--samples", "2")
    assert extended.code == 0, extended.err
    assert json.loads(windlass("sweep", "ls", "--json").out)["sweeps"][0]["trials"]["TERMINATED"] == 4
    for verb in ("show", "stop", "logs", "resume"):
        refused = windlass(verb, "hill")
        assert refused.code == 4
        assert "'hill' is a sweep, not a run" in refused.err
        assert (
            "hint: windlass sweep show hill; `windlass sweep` has the verbs stop, resume, why and best" in refused.err
        )
    for words in (("show",), ("stop",), ("resume",), ("best",), ("why", "0")):
        refused = windlass("sweep", words[0], run, *words[1:])
        assert refused.code == 4
        assert f"`{run}` is a run, not a sweep" in refused.err
        assert f"hint: windlass show {run}" in refused.err
    again = windlass("sweep", "extend", "hill", "--samples", "2")
    assert (again.code, "hill has num_samples=2 already: nothing changes" in again.err) == (0, True)
    assert "is over" not in again.err, "no head was started for it"
    assert "`lrr` of the new space" in windlass("sweep", "extend", "hill", "--space", "lrr=1").err
    other = windlass(
        "sweep", "extend", "hill", "--samples", "4", "--stop", "cost=2", "--space", "lr={grid: [0.3, 0.4]}"
    )
    assert other.code == 0, other.err
    trials = json.loads(windlass("sweep", "show", "hill", "--json").out)["trials"][6:]
    assert {trial["config"]["lr"]: trial["last"]["cost"] for trial in trials} == {0.3: 2, 0.4: 2}
    assert windlass("sweep", "resume", "hill").code == 0, "and so says its next head"
