"""What every test of the command line asks for: the program, called in this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from windlass.cli import main


@dataclass(frozen=True)
class Result:
    """What one command line gave."""

    code: int
    out: str
    err: str


Windlass = Callable[..., Result]


@pytest.fixture
def windlass(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Windlass:
    """`windlass("ps", "--json")` in this process, with a fresh home; `stdin` is what it can read."""
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("NO_COLOR", "_WINDLASS_COMPLETE"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call
