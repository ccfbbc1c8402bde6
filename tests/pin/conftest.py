"""Git and uv in a world of their own: no configuration, cache or network of the machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Shell = Callable[..., str]


@pytest.fixture(scope="session")
def uv_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of uv for all tests: what it knows of the machine's interpreters takes it a while to find out."""
    return tmp_path_factory.mktemp("uv-cache")


@pytest.fixture(autouse=True)
def _own_world(uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("GIT_", "UV_", "PIP_")):
            monkeypatch.delenv(name)
    settings = {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@example.org",
        "UV_CACHE_DIR": str(uv_cache),
        "UV_OFFLINE": "1",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def sh() -> Shell:
    """Run a shell line in a folder; returns what it printed."""

    def call(line: str, folder: Path) -> str:
        done = subprocess.run(["/bin/sh", "-ec", line], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.fixture
def repo(tmp_path: Path, sh: Shell) -> Path:
    """A repository with one commit: a file, a program, a link, a package in `pkg`."""
    folder = tmp_path / "repo"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print('one')\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "link").symlink_to("train.py")
    (folder / "pkg/__init__.py").write_text("X = 1\n")
    (folder / ".gitignore").write_text("ignored/\n*.log\n")
    sh("git init -q -b main . && git add . && git commit -qm one", folder)
    return folder
