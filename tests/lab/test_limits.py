from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.tree import ROOT

pytestmark = pytest.mark.system

CONFTEST = """
from tests.conftest import pytest_configure, pytest_runtest_call, pytest_runtest_setup, pytest_runtest_teardown
from tests.lab import limits

limits.LIMIT_S = 2.0
"""

HANGS = """
import threading
import time
import pytest

@pytest.fixture
def door():
    opened = threading.Event()
    thread = threading.Thread(target=opened.wait, name="the client")
    thread.start()
    yield
    opened.set()
    thread.join()

def test_hangs(door):
    while True:
        try:
            time.sleep(1000)
        except Exception:
            continue

def test_passes():
    time.sleep(0.001)
"""

IS_DEAF = """
import ctypes
import signal

def test_is_deaf():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
    ctypes.PyDLL(None).sleep(1000)
"""


def run_pytest(folder: Path, text: str, *arguments: str) -> tuple[int, str]:
    (folder / "test_it.py").write_text(text)
    (folder / "conftest.py").write_text(CONFTEST)
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", *arguments]
    done = subprocess.run(
        [*argv, str(folder)], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=folder, capture_output=True, text=True
    )
    return done.returncode, done.stdout + done.stderr


def test_a_test_that_hangs_fails_with_the_stacks_and_the_next_one_runs(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, HANGS)
    assert code == 1
    assert "1 failed, 1 passed" in said
    assert "the call of test_it.py::test_hangs hangs: it was not over after 2 s" in said
    assert "time.sleep(1000)" in said
    assert "thread the client:" in said


def test_a_test_that_hears_no_signal_ends_its_worker_and_is_named(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, IS_DEAF, "-n1")
    assert code == 1
    assert "crashed while running 'test_it.py::test_is_deaf'" in said
    assert "in test_is_deaf" in said
