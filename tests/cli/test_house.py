"""The small verbs: doctor, explain, completion, config."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Windlass
from windlass.cli import error_table
from windlass.cli.program import main
from windlass.core.version import VERSION


def test_doctor_finds_a_fit_machine(windlass: Windlass) -> None:
    result = windlass("doctor", "--json")
    content = json.loads(result.out)
    found = {check["name"]: check["status"] for check in content["checks"]}
    assert content["schema"] == "windlass.doctor/1"
    assert {"python", "git", "uv", "home", "cache", "disk", "gpus", "subreaper", "splice", "pidfd"} <= found.keys()
    assert found["git"] == found["home"] == found["uv"] == "ok"


def test_doctor_fails_where_nothing_can_be_written(windlass: Windlass, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_HOME", "/proc/nowhere")
    result = windlass("doctor")
    assert result.code == 8
    assert "fail  home           cannot create /proc/nowhere/runs" in result.out
    assert "hint: set WINDLASS_HOME to a writable folder" in result.out


def test_doctor_without_git(windlass: Windlass, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    result = windlass("doctor")
    assert result.code == 8
    assert "fail  git            `git` is not installed or not on the PATH" in result.out


def test_explain_lists_and_shows(windlass: Windlass) -> None:
    listed = windlass("explain").out.splitlines()
    assert listed[0] == "How runs end"
    assert [line.split()[0] for line in listed if line.startswith("  ")] == list(error_table.codes())
    shown = windlass("explain", "[dirty-tree]").out
    assert shown == windlass("explain", "dirty-tree").out
    entry = error_table.codes()["dirty-tree"]
    assert shown == f"dirty-tree (Code and git)\n\n{entry.meaning}\n\nWhat to do: {entry.remedy}\n"
    content = json.loads(windlass("explain", "dirty-tree", "--json").out)
    assert content["schema"] == "windlass.explain/2"
    assert (content["code"], content["group"], content["meaning"]) == ("dirty-tree", "code", entry.meaning)
    assert (content["remedy"], content["more"]) == (entry.remedy, "")


def test_explain_shows_the_longer_text_of_a_code(windlass: Windlass) -> None:
    shown = windlass("explain", "slurm-refused").out
    assert "\n\nThese commands at the site list what is allowed:\n\n    sinfo -s  " in shown
    assert json.loads(windlass("explain", "slurm-refused", "--json").out)["more"] in shown


def test_explain_lists_groups_and_the_codes_of_one(windlass: Windlass) -> None:
    listed = [line.split()[0] for line in windlass("explain", "groups").out.splitlines()]
    assert listed == list(error_table.groups())
    groups = json.loads(windlass("explain", "groups", "--json").out)["groups"]
    assert sum(group["codes"] for group in groups.values()) == len(error_table.codes())
    secrets = windlass("explain", "secrets").out.splitlines()
    assert secrets[0] == "Secrets"
    assert len(secrets) == 1 + groups["secrets"]["codes"]
    assert list(json.loads(windlass("explain", "secrets", "--json").out)["groups"]) == ["secrets"]


def test_explain_searches(windlass: Windlass) -> None:
    found = json.loads(windlass("explain", "--search", "Pyproject EXTRA", "--json").out)
    assert list(found["codes"]) == ["unknown-extra"]
    assert found["groups"] == {"environments": ["unknown-extra"]}
    nothing = windlass("explain", "--search", "zebra")
    assert nothing.code == 4
    assert nothing.err.startswith("error: no error code mentions `zebra`")


@pytest.mark.parametrize(
    ("typed", "hint"),
    [
        ("dirty-tre", "did you mean `windlass explain dirty-tree`?"),
        ("missing-argumen", "did you mean `windlass explain missing-argument`?"),
        ("lustre", "`windlass explain --search lustre` finds 1 code"),
        ("zebra", "`windlass explain` lists all codes"),
    ],
)
def test_explain_hints_at_what_was_meant(windlass: Windlass, typed: str, hint: str) -> None:
    result = windlass("explain", typed)
    assert result.code == 4
    assert f"\nhint: {hint}" in result.err


def test_version(windlass: Windlass) -> None:
    assert windlass("--version").out == f"windlass {VERSION}\n"


def test_config_schema_is_a_json_schema(windlass: Windlass) -> None:
    content = json.loads(windlass("config", "schema").out)
    assert content["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert "tasks" in content["$defs"]["Experiment"]["properties"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_call_back(shell: str, windlass: Windlass) -> None:
    assert f"_WINDLASS_COMPLETE={shell}_complete" in windlass("completion", shell).out


def completions(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str) -> list[str]:
    monkeypatch.setenv("_WINDLASS_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    capsys.readouterr()
    assert main([]) == 0
    return [entry.partition(",")[2] for entry in capsys.readouterr().out.splitlines()]


def test_what_a_shell_completes(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "runs" / "hello-aaaaaaaa").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    Path("e.yaml").write_text("name: x\nparams: {lr: 1}\ntasks: {train: {run: a}, score: {run: b}}\n")
    assert completions(capsys, monkeypatch, "windlass la") == ["launch"]
    assert completions(capsys, monkeypatch, "windlass show ") == ["hello-aaaaaaaa", "hello", "last"]
    assert completions(capsys, monkeypatch, "windlass launch e.yaml tasks.score.nod") == ["tasks.score.nodes="]
    assert completions(capsys, monkeypatch, "windlass launch e.yaml params.") == ["params.lr="]
    assert "--snapshot" in completions(capsys, monkeypatch, "windlass launch e.yaml --sn")
    assert "dirty-tree" in completions(capsys, monkeypatch, "windlass explain dirty")
    assert completions(capsys, monkeypatch, "windlass site show isam") == ["isambard"]
    assert completions(capsys, monkeypatch, "windlass launch e.yaml --on lo") == ["local"]
    assert completions(capsys, monkeypatch, "windlass launch e.yaml --on isambard/").count("isambard/workq") == 1
    os.environ.pop("_WINDLASS_COMPLETE")
