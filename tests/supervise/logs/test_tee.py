from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from windlass.supervise.logs.tee import LogTee


def log(folder: Path, attempt: int, text: str) -> None:
    path = folder / str(attempt) / "main" / "1.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_what_is_new_is_copied_attempt_by_attempt(tmp_path: Path) -> None:
    log(tmp_path, 1, "of an earlier start\n")
    copied: list[bytes] = []
    echo = LogTee(tmp_path, "main", 1, copied.append)
    echo.look()
    log(tmp_path, 2, "a")
    echo.look()
    log(tmp_path, 2, "b\n")
    log(tmp_path, 3, "c\n")
    log(tmp_path, 4, "d\n")
    echo.look()
    echo.look()
    assert b"".join(copied) == b"ab\nc\nd\n"


def test_a_short_write_loses_nothing(tmp_path: Path) -> None:
    copied = bytearray()

    def write(piece: bytes) -> int:
        copied.extend(piece[:2])
        return min(2, len(piece))

    echo = LogTee(tmp_path, "main", 1, write)
    log(tmp_path, 1, "seven\n\n")
    echo.look()
    assert bytes(copied) == b"seven\n\n"


def test_no_logs_are_no_error(tmp_path: Path) -> None:
    LogTee(tmp_path / "none", "main", 0).look()


def run_in_child(run: str, folder: Path) -> int:
    """The exit code of a process that does it; our own signals and children stay as they are."""
    program = (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from windlass.supervise.logs.tee import LogTee, run_watched\n"
        f"sys.exit(run_watched(LogTee(Path({str(folder)!r}), 'main', 1), {run}))\n"
    )
    return os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", program])


def test_the_code_is_that_of_what_ran_below(tmp_path: Path) -> None:
    assert run_in_child("lambda: 75", tmp_path) == 75
    assert run_in_child("lambda: 1 // 0", tmp_path) == 70
    assert run_in_child("lambda: os.kill(os.getpid(), signal.SIGKILL)", tmp_path) == 128 + signal.SIGKILL


def test_signals_go_below(tmp_path: Path) -> None:
    caught = (
        "lambda: (signal.signal(signal.SIGTERM, lambda *_: os._exit(7)), os.kill(os.getppid(), 15), time.sleep(30))"
    )
    assert run_in_child(caught, tmp_path) == 7
