"""A world without the machine's settings, a scheduler that starts nothing, and the stage of the system tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.bench import Bench, PickyBackend
from tests.system.stage import Stage
from windlass.backends import Backend
from windlass.launcher import client
from windlass.plan.site import Site
from windlass.runs.home import Home
from windlass.testing.fake_backend import Faults


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("GIT_", "UV_", "PIP_")):
            monkeypatch.delenv(name)
    runtime = tmp_path / "runtime"  # where secrets are delivered
    runtime.mkdir(mode=0o700)
    settings = {
        "XDG_RUNTIME_DIR": str(runtime),
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
def backend(monkeypatch: pytest.MonkeyPatch) -> PickyBackend:
    """What stands for `local`: it takes jobs and never has room for them."""
    found = PickyBackend(Faults(is_full=True))

    def found_for(site: Site, *, push: object = None, patience_s: float | None = None) -> Backend:
        assert site.backend == "local"
        return found

    monkeypatch.setattr(client, "backend_for", found_for)
    return found


@pytest.fixture
def bench(tmp_path: Path, home: Path, backend: PickyBackend) -> Bench:
    """Runs whose jobs wait in the queue of `backend` for ever."""
    return Bench(tmp_path / "code", Home(home))


@pytest.fixture
def stage(tmp_path: Path, home: Path) -> Iterator[Stage]:
    found = Stage(tmp_path, Home(home))
    yield found
    found.close()
