"""A module that hangs when it is imported: it has a limit, and a head that waits for it can be asked to end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.system.stage import until
from tests.tune.sweeps import quiet
from windlass import tune
from windlass.core.errors import UsageError
from windlass.tune.controller.requests import ask
from windlass.tune.executors.local import Local
from windlass.tune.folder import SweepFolder
from windlass.tune.sweep.head import time_limit

pytestmark = pytest.mark.system
HANGS = """
import os, pathlib, time
if os.getpid() != {pid}:
    pathlib.Path({mark!r}).write_text(str(os.getpid()))
    time.sleep(10_000)
def trial(config): pass
"""


@pytest.fixture
def hanging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A trainable whose module hangs in every other process, and the file that such a process writes first."""
    name, mark = f"hangs_{os.getpid()}_{tmp_path.name}", tmp_path / "mark"
    (tmp_path / f"{name}.py").write_text(HANGS.format(pid=os.getpid(), mark=str(mark)))
    monkeypatch.syspath_prepend(str(tmp_path))
    found = __import__(name)
    monkeypatch.delitem(sys.modules, name)
    sys.modules[name] = found
    return found.trial, mark


def tuner(trainable: Any, folder: Path, **settings: Any) -> tune.Tuner:
    config = tune.TuneConfig(executor=Local(**settings))
    return tune.Tuner(trainable, tune_config=config, run_config=quiet(folder))


def is_gone(mark: Path) -> bool:
    try:
        os.kill(int(mark.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def test_an_import_that_hangs_has_a_limit(hanging: Any, tmp_path: Path) -> None:
    trainable, mark = hanging
    with pytest.raises(UsageError, match=r"took longer than 5 s") as caught:
        tuner(trainable, tmp_path, import_limit_s=5).fit()
    assert caught.value.code == "user-code-failed"
    assert "import_limit_s=10" in caught.value.hint
    until(lambda: is_gone(mark), "the process that hung is gone")


def wait_and(do: Any, mark: Path) -> threading.Thread:
    def run() -> None:
        until(mark.exists, "the import has begun")
        do()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_one_ctrl_c_ends_a_head_that_waits_for_an_import(
    hanging: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainable, mark = hanging
    thread = wait_and(lambda: os.kill(os.getpid(), signal.SIGINT), mark)
    results = tuner(trainable, tmp_path).fit()
    thread.join()
    assert len(results) == 0
    assert "SIGINT: the head was told to stop; resume with Tuner.restore" in capsys.readouterr().err
    until(lambda: is_gone(mark), "the process that hung is gone")


def test_a_request_ends_it_too(hanging: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainable, mark = hanging
    folder = SweepFolder(tmp_path / "sweep")
    thread = wait_and(lambda: ask(folder, "stop-all", why="enough"), mark)
    tuner(trainable, tmp_path).fit()
    thread.join()
    assert "a request: the head was told to stop" in capsys.readouterr().err


def test_a_head_that_imports_the_module_itself_has_a_limit_and_says_where_it_hangs() -> None:
    before = signal.getsignal(signal.SIGALRM)

    def hang() -> None:
        with time_limit("the module `m`", limit_s=0.2), contextlib.suppress(Exception):  # a module may catch those
            time.sleep(10_000)

    with pytest.raises(UsageError, match=r"importing the module `m` took longer than 0\.2 s") as caught:
        hang()
    assert "time.sleep(10_000)" in caught.value.message
    assert signal.getsignal(signal.SIGALRM) is before
