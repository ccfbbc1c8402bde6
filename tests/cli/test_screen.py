"""What a terminal of 80 columns shows: no line is wrapped within a word."""

from __future__ import annotations

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
from tests.cli.test_looking import bad_run, good_run
from windlass.cli.screen import fold

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
