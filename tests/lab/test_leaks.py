from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import leaks

pytestmark = pytest.mark.system

# A grandchild with its own session, orphaned at once and without our environment: only the tree knows it is ours.
DETACHED = "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    time.sleep(600)\n  os._exit(0)\nos.wait()\n"


def start_detached(env: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", DETACHED], env=env, check=True)


def test_a_detached_grandchild_is_found_named_and_removed(tmp_path: Path) -> None:
    with (
        pytest.raises(leaks.LeakError, match=r"(?s)process \d+: .*time\.sleep\(600\)"),
        leaks.watch(tmp_path, grace_s=0.2),
    ):
        start_detached({})
    with leaks.watch(tmp_path, grace_s=0.2):
        pass


def test_a_process_that_ends_within_the_grace_is_no_leak(tmp_path: Path) -> None:
    with leaks.watch(tmp_path, grace_s=60):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3)"])
    assert child.wait() == 0


def test_processes_from_before_are_left_alone(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with leaks.watch(tmp_path, grace_s=0.2):
            pass
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_a_mount_is_found(tmp_path: Path, need: Callable[[str], None]) -> None:
    need("tmpfs")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], check=True)
    try:
        assert leaks.fresh_mounts(tmp_path) == [str(place)]
    finally:
        subprocess.run(["umount", str(place)], check=True)
    assert leaks.fresh_mounts(tmp_path) == []


def test_the_token_does_not_stay(tmp_path: Path) -> None:
    outer = os.environ[leaks.TOKEN]
    with leaks.watch(tmp_path):
        assert os.environ[leaks.TOKEN] != outer
    assert os.environ[leaks.TOKEN] == outer
