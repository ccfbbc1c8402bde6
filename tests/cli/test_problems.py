"""Every mistake in the same shape: an error with its code, a hint, the right exit code, and nothing on standard output."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.cli.conftest import Windlass
from windlass.cli import problems
from windlass.cli.error_table import codes
from windlass.core.errors import AccessError, PreconditionError


def shape(err: str) -> list[str]:
    """The lines, with the run of spaces before the code made one."""
    return [" ".join(line.split()) for line in err.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "code", "lines"),
    [
        (
            ["ps", "--jsn"],
            2,
            ["error: `windlass ps` has no option `--jsn` [unknown-option]", "hint: did you mean `--json`?"],
        ),
        (
            ["--zzz"],
            2,
            ["error: `windlass` has no option `--zzz` [unknown-option]", "hint: run `windlass --help` for its options"],
        ),
        (["show"], 2, ["error: `windlass show` needs RUN [missing-argument]", "hint: such as `windlass show last`"]),
        (
            ["ps", "--limit", "none"],
            2,
            [
                "error: `--limit` of `windlass ps`: 'none' is not a valid integer range [invalid-value]",
                "hint: run `windlass ps --help` for its arguments",
            ],
        ),
        (
            ["ps", "--since", "yesterday"],
            2,
            [
                "error: `--since` of `windlass ps`: invalid time `yesterday`: use 10m, 2d or 2026-11-21T05:04 [invalid-value]",
                "hint: run `windlass ps --help` for its arguments",
            ],
        ),
        (
            ["logs", "last", "--attempt", "first"],
            2,
            [
                "error: `--attempt` of `windlass logs`: invalid attempt `first`: use a number from 1, or `all` [invalid-value]",
                "hint: run `windlass logs --help` for its arguments",
            ],
        ),
        (
            ["show", "last", "more"],
            2,
            [
                "error: got unexpected extra argument (more) [usage]",
                "hint: run `windlass show --help` for its arguments",
            ],
        ),
        (
            ["show", "nope"],
            4,
            ["error: no run 'nope': there are no runs yet [run-not-found]", "hint: windlass launch FILE starts one"],
        ),
        (
            ["launch", "--gpus", "2", "experiment.yaml"],
            2,
            [
                "error: `--gpus` works only with a command: `windlass launch --gpus ... -- COMMAND` [usage]",
                "hint: for a file use the override tasks.TASK.gpus=N",
            ],
        ),
        (
            ["launch", "params.lr=3"],
            2,
            [
                "error: `windlass launch` needs a FILE; `params.lr=3` is an override [missing-argument]",
                "hint: such as `windlass launch experiment.yaml`",
            ],
        ),
        (
            ["launch", "train.py", "params.lr=3"],
            2,
            [
                "error: `train.py` is a program, not an experiment file [usage]",
                "hint: windlass launch -- python train.py",
            ],
        ),
        (
            ["launch", "e.yaml", "--params.lr", "3"],
            2,
            ["error: space in override `--params.lr 3` [usage]", "hint: write `--params.lr=3`"],
        ),
        (
            ["plan", "--params.lr", "3", "e.yaml"],
            2,
            ["error: space in override `--params.lr 3` [usage]", "hint: write `--params.lr=3`"],
        ),
        (
            ["launch", "e.yaml", "--", "python", "train.py"],
            2,
            ["error: both a FILE (`e.yaml`) and a command after `--` [usage]", "hint: launch one or the other"],
        ),
        (
            ["launch", "a.yaml", "params.lr=1", "b.yaml"],
            2,
            [
                "error: two files: `a.yaml` and `b.yaml` [usage]",
                "hint: give one file at a time",
            ],
        ),
        (
            ["launch", "--"],
            2,
            ["error: no command after `--` [missing-argument]", "hint: windlass launch -- python train.py"],
        ),
        (
            ["plan", "--snapshto", "experiment.yaml"],
            2,
            ["error: `windlass plan` has no option `--snapshto` [unknown-option]", "hint: did you mean `--snapshot`?"],
        ),
        (
            ["plan", "nowhere.yaml"],
            4,
            [
                "error: no such file: `nowhere.yaml` [file-not-found]",
                "hint: `windlass init NAME` creates an experiment file to start from",
            ],
        ),
        (
            ["stop", "last", "--now", "--checkpoint"],
            2,
            ["error: `--checkpoint` and `--now` are mutually exclusive [usage]", "hint: give one of them"],
        ),
        (
            ["gc", "--runs"],
            2,
            [
                "error: `--runs` needs `--older-than`, so that no run is removed by mistake [missing-argument]",
                "hint: windlass gc --runs --older-than 30d --dry-run",
            ],
        ),
        (
            ["explain", "dirty-tre"],
            4,
            [
                "error: unknown error code `dirty-tre` [unknown-name]",
                "hint: did you mean `windlass explain dirty-tree`?",
            ],
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) and not value[0].startswith("error") else "",
)
def test_mistakes(
    arguments: list[str],
    code: int,
    lines: list[str],
    windlass: Windlass,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = windlass(*arguments)
    slug = lines[0].rpartition("[")[2].rstrip("]")
    assert shape(result.err) == [*lines, f"more: windlass explain {slug}"]
    assert (result.code, result.out) == (code, "")


def test_a_bug_is_two_lines_and_a_file(windlass: Windlass, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("windlass.cli.verbs.manage.config.emit", _fail)
    result = windlass("config", "schema")
    assert result.code == 70
    crashes = list((tmp_path / "cache" / "windlass" / "crashes").iterdir())
    assert shape(result.err) == [
        "error: internal error: KeyError: 'lost' [internal]",
        f"hint: the traceback is in {crashes[0]}; please report it",
    ]
    assert "in _fail" in crashes[0].read_text()


def test_a_bug_with_v_shows_the_traceback(windlass: Windlass, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windlass.cli.verbs.manage.config.emit", _fail)
    for arguments in (("-v", "config", "schema"), ("config", "schema", "-v")):
        result = windlass(*arguments)
        assert "Traceback (most recent call last)" in result.err
        assert "in _fail" in result.err


def test_an_error_with_v_shows_where_it_came_from(windlass: Windlass) -> None:
    assert "Traceback" in windlass("-v", "show", "nope").err
    assert "Traceback" not in windlass("show", "nope").err


def _fail(text: str) -> None:
    raise KeyError("lost")


def test_interrupt_is_130(windlass: Windlass, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("windlass.cli.verbs.manage.config.emit", interrupt)
    result = windlass("config", "schema")
    assert (result.code, result.err) == (130, "\ninterrupted\n")


def test_what_the_system_refuses_is_no_bug() -> None:
    denied = problems.from_system(PermissionError(errno.EACCES, "Permission denied", "/x/y"))
    assert isinstance(denied, AccessError)
    assert denied.message == "permission denied: /x/y (Permission denied)"
    full = problems.from_system(OSError(errno.ENOSPC, "No space left on device", "/x/y"))
    assert isinstance(full, PreconditionError)
    assert (full.message, full.code) == ("no space left for /x/y", "disk-full")
    assert problems.from_system(OSError(errno.EIO, "Input/output error")) is None


def test_control_characters_do_not_reach_the_terminal(windlass: Windlass) -> None:
    result = windlass("show", "a\x1b[2Jb")
    assert "\x1b" not in result.err
    assert "\\x1b[2J" in result.err


def test_the_documented_codes_are_all_explainable(windlass: Windlass) -> None:
    for code in codes():
        result = windlass("explain", code)
        assert result.code == 0
        assert result.out.startswith(f"{code} (")
