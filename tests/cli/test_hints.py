"""What a person types who comes from another program, and the line that the hint names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Windlass
from tests.cli.test_catalogue import ENTRIES, command
from tests.runs.journals import RunScript
from windlass.cli.error_table import codes
from windlass.cli.other_words import _OF_FAMILY, _VERBS
from windlass.record.causes import Cause
from windlass.runs.home import Home
from windlass.sites.profile import Partition, Profile
from windlass.sites.store import save_site

EXPERIMENT = "name: line\nparams: {lr: 1, deep: {dim: 2}}\nrun: 'echo ${params.lr} ${params.deep.dim}'\n"


@pytest.mark.parametrize(
    ("line", "ours"),
    [
        ("list", "windlass ps"),
        ("ls", "windlass ps"),
        ("status", "windlass show RUN"),
        ("status hello", "windlass show hello"),
        ("cancel hello", "windlass stop hello"),
        ("kill hello", "windlass stop hello --now"),
        ("rm hello", "windlass gc --runs --older-than 30d"),
        ("queue", "windlass ps --state queued"),
        ("run e.yaml", "windlass launch e.yaml"),
        ("run python train.py", "windlass launch -- python train.py"),
        ("attach hello", "windlass logs hello --follow"),
        ("tail hello", "windlass logs hello --follow"),
        ("cp hello folder", "windlass outputs pull hello"),
        ("help", "windlass --help"),
        ("help data add", "windlass data add --help"),
        ("data list", "windlass data ls"),
        ("data delete x", "windlass data rm"),
        ("sweep cancel x", "windlass sweep stop"),
        ("sweep status", "windlass sweep show"),
        ("lauch", "windlass launch"),
    ],
)
def test_a_verb_of_another_program_names_ours(line: str, ours: str, windlass: Windlass) -> None:
    done = windlass(*line.split())
    assert done.code == 2
    assert f"hint: did you mean `{ours}`?\n" in done.err


def test_no_other_word_is_a_verb_of_ours_and_every_answer_is_one() -> None:
    verbs = {entry.name for entry in ENTRIES}
    assert not verbs & _VERBS.keys()
    assert {line.split()[0] for line in _VERBS.values()} <= {*verbs, "--version"}
    for name in ("data", "secret", "site", "sweep", "outputs", "image", "beaker"):
        members = getattr(command(name), "commands")  # noqa: B009
        assert not [word for word in _OF_FAMILY if word in members and word not in ("run", "cancel")]


@pytest.mark.parametrize(
    ("words", "override"),
    [
        (["--lr", "0.1"], "params.lr=VALUE"),
        (["--lr=0.1"], "params.lr=0.1"),
        (["lr=0.1"], "params.lr=0.1"),
        (["deep.dim=3"], "params.deep.dim=3"),
        (["--deep.dim=3"], "params.deep.dim=3"),
    ],
)
def test_a_parameter_without_its_prefix(
    words: list[str], override: str, windlass: Windlass, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("e.yaml").write_text(EXPERIMENT)
    for verb in ("launch", "plan"):
        done = windlass(verb, "e.yaml", *words)
        assert done.code in (2, 3)
        assert f"`{override}`" in done.err


def test_gpus_on_a_machine_without_one(
    windlass: Windlass, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDLASS_GPUS", "")
    words = ("launch", "--gpus", "1", "--allow-dirty", "--", "true")
    assert "error: task `main` does not fit: 1 GPU, and `local` has 0 " in (done := windlass(*words)).err
    assert "hint: no site with GPUs is added; `windlass site add NAME` adds one, such as " in done.err
    save_site(Profile(name="lab", partitions={"gpu": Partition(num_nodes=4, gpus=4)}), home)
    assert "hint: sites with GPUs: `--on lab`; " in windlass(*words).err


def test_ps_takes_the_name_that_launch_each_hints_at(windlass: Windlass, home: Path) -> None:
    RunScript(Home(home), "line-aaaaaaaa").submit().end().close()
    RunScript(Home(home), "other-bbbbbbbb").submit().end().close()
    done = windlass("ps", "line")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == ["line-aaaaaaaa"]
    assert windlass("ps", "li*").out == done.out
    assert windlass("ps", "line", "--name", "other").code == 2


def test_a_failing_command_names_the_page_of_its_code(windlass: Windlass, tmp_path: Path) -> None:
    assert windlass("show", "nope").err.endswith("\nmore: windlass explain run-not-found\n")
    (tmp_path / "e.yaml").write_text("name: x\nnodez: 1\nrun: [1]\n")
    done = windlass("plan", str(tmp_path / "e.yaml"))
    named = [line.rpartition(" ")[2] for line in done.err.splitlines() if line.startswith("more: ")]
    assert len(named) == 2
    assert set(named) <= set(codes())


def test_every_cause_of_a_failure_has_a_page() -> None:
    assert {str(cause) for cause in Cause} - set(codes()) <= {"ok"}
