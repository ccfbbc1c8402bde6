"""What a terminal of 80 columns shows: no line is wrapped within a word."""

from __future__ import annotations

import json
import os
import pty
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.cli.test_catalogue import LEAVES
from tests.cli.test_looking import bad_run, good_run, plan_as
from tests.runs.journals import RunScript
from windlass.cli.screen import fold
from windlass.cli.verbs.look.ps import _fitted
from windlass.core.clock import FakeClock
from windlass.runs.home import Home
from windlass.testing.beaker import FakeBeaker

PROGRAM = str(Path(sys.executable).with_name("windlass"))
WIDTH = 80


def on_terminal(*arguments: str) -> list[str]:
    """The lines that a terminal of 80 columns gets."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"NO_COLOR": "1"}
    process = subprocess.Popen([PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    text = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        text += piece
    os.close(ours)
    process.wait()
    return text.decode().replace("\r", "").splitlines()


def broken(lines: list[str]) -> list[str]:
    """Lines that such a terminal wraps although a blank would have been a place for it."""
    return [line for line in lines if len(line) > WIDTH and len(line.split()) > 1 and len(line.split()[0]) < WIDTH // 2]


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("short", "short"),
        ("hint: one two three four", "hint: one two\n      three\n      four"),
        ("next   windlass show a", "next   windlass\n       show a"),
        ("  a b c d e f g h i j k", "  a b c d e f g\n    h i j k"),
        ("a /a/path/that/is/very/long b", "a\n  /a/path/that/is/very/long\n  b"),
        ("\x1b[1mbold\x1b[0m and then", "\x1b[1mbold\x1b[0m and then"),
    ],
)
def test_lines_fold_between_words(text: str, folded: str) -> None:
    assert fold(text, 15) == folded
    assert fold(text, 0) == text


@pytest.mark.system
@pytest.mark.parametrize("name", ["", *(name for name, _ in LEAVES)])
def test_no_help_page_is_wrapped_within_a_word(name: str, home: Path) -> None:
    assert broken(on_terminal(*name.split(), "--help")) == []


@pytest.mark.system
def test_no_page_is_wrapped_within_a_word(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good_run(Path(home))
    bad_run(Path(home))
    monkeypatch.chdir(tmp_path)
    Path("e.yaml").write_text("name: x\nparams: {lr: 1}\nrun: 'true'\n")
    for line in (
        "ps",
        "show bbbb",
        "show aaaa",
        "explain",
        "explain dirty-tree",
        "plan e.yaml",
        "nope",
        "doctor",
        "launch e.yaml",
    ):
        assert broken(on_terminal(*line.split())) == [], line


LONG = "--note " + "a-word " * 20


@pytest.mark.system
def test_pages_of_mason_and_gantry_fold(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BEAKER_TOKEN", raising=False)
    Path("train.py").write_text("")
    line = """\
git init -q -b main . && git add . && git -c user.name=t -c user.email=t@t commit -qm one
git remote add origin https://github.com/me/play && git update-ref refs/remotes/origin/main HEAD
git config branch.main.remote origin && git config branch.main.merge refs/heads/main"""
    subprocess.run(["/bin/sh", "-ec", line], check=True)
    mason = ["mason", "--cluster", "ai2/triton", "--gpus", "0", "--pure_docker_mode", "--user", "me"]
    for words in (
        [*mason, "--emit", "plan", "--", "python", "train.py", *LONG.split()],
        [*mason, "--on", "local", "--emit", "plan", "--", "python", "train.py", *LONG.split()],
        ["gantry", "run", "--on", "local", "--emit", "plan", "--", "python", "train.py", *LONG.split()],
    ):
        lines = on_terminal(*words)
        assert broken(lines) == [], words
        assert any("a-word" in line for line in lines), lines


@pytest.mark.system
def test_pages_of_ckpt_fold(home: Path, tmp_path: Path) -> None:
    for name, loss in (("a", 0.5), ("b", 0.25)):
        rows = [{"step": step, "train/loss": loss / step} for step in range(1, 4)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = on_terminal("ckpt", "compare-loss", f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl")
    assert broken(lines) == []
    assert any("differs from step 1" in line for line in lines), lines


@pytest.mark.system
def test_pages_of_beaker_fold(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BEAKER_ADDR", raising=False)
    task = {"name": "a-task-with-a-long-name", "image": {"beaker": "me/image"}, "command": ["true"]}
    task |= {"result": {"path": "/results"}, "context": {"priority": "normal"}}
    (tmp_path / "spec.json").write_text(json.dumps({"version": "v2", "description": "a-word " * 20, "tasks": [task]}))
    with FakeBeaker(tmp_path / "beaker") as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        on_terminal("beaker", "submit", f"{tmp_path}/spec.json", "--name", "an-experiment-with-a-rather-long-name")
        for line in ("show me/an-experiment-with-a-rather-long-name", "config check"):
            lines = on_terminal("beaker", *line.split())
            assert broken(lines) == [], line
            assert len(lines) > 4, lines


CELLS = [
    ("baseline-3kq8vm2x", "running", "lab/gpu", "2x8 gpu", "1/2 tasks, step 300", "5m ago", "5m12s", "1", ""),
    ("hello-7hq2mx4p", "failed", "local", "1 cpu", "step 10", "2d ago", "12s", "3", "user-error"),
]


@pytest.mark.parametrize(
    ("width", "header"),
    [
        (0, "RUN STATE SITE SHAPE PROGRESS CREATED TOOK TRIES NOTE"),
        (120, "RUN STATE SITE SHAPE PROGRESS CREATED TOOK TRIES NOTE"),
        (98, "RUN STATE SITE SHAPE PROGRESS CREATED TOOK NOTE"),
        (90, "RUN STATE SITE SHAPE PROGRESS CREATED NOTE"),
        (80, "RUN STATE SITE SHAPE PROGRESS NOTE"),
        (70, "RUN STATE SITE PROGRESS NOTE"),
        (20, "RUN STATE SITE SHAPE PROGRESS CREATED TOOK TRIES NOTE"),
    ],
)
def test_a_narrow_terminal_gets_fewer_columns_of_ps(width: int, header: str) -> None:
    lines = _fitted(CELLS, width)
    assert " ".join(lines[0].split()) == header
    if width >= 70:
        assert all(len(line) <= width for line in lines)
    assert lines[2].endswith("user-error")


def test_a_note_is_cut_before_a_column_is_left_out() -> None:
    cells = [*CELLS, (*CELLS[0][:-1], "waits for 4 GPUs of this machine, which other runs hold")]
    lines = _fitted(cells, 120)
    assert lines[0].split()[-2:] == ["TRIES", "NOTE"]
    assert lines[3].endswith("...")
    assert len(lines[3]) == 120


@pytest.mark.system
def test_a_run_is_one_line_of_ps(home: Path) -> None:
    bad_run(Path(home))
    plan_as(
        good_run(Path(home)),
        site={"name": "lab", "partition": "gpu"},
        tasks=[{"name": "a", "shape": {"nodes": 2, "gpus": 8}}],
    )
    for number in range(3):
        run = RunScript(Home(home), f"digits-{number:08d}", FakeClock(1_000_000.0)).submit().end().close()
        plan_as(
            run,
            notes=[f"trial {number:05d} of sweep digits-7hq2mx4p"],
            tasks=[{"name": "a", "shape": {"nodes": 1, "gpus": 0}}],
        )
    lines = on_terminal("ps", "--all")
    assert [line.split()[0] for line in lines] == ["RUN", "hello-aaaaaaaa", "hello-bbbbbbbb", "digits-7hq2mx4p"]
    assert max(map(len, lines)) <= WIDTH
