"""A stage per test, in a world without the machine's git and uv settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.stage import Stage
from windlass.runs.home import Home


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
        "UV_OFFLINE": "1",
        "WINDLASS_GPUS": "",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def stage(tmp_path: Path, home: Path) -> Iterator[Stage]:
    found = Stage(tmp_path, Home(home))
    yield found
    found.close()
