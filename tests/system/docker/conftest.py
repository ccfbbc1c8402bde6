"""A stage whose runs are containers of the lab's engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.lab.docker import BASE, DockerLab
from tests.system.stage import Stage
from windlass import Options, Run


@pytest.fixture(autouse=True)
def _asks_no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fresh home each launch would ask for the image's packages, in a container; tests of images prove that."""
    monkeypatch.setattr("windlass.pin.image.ensuring.list_packages", lambda *_: ())


@pytest.fixture
def launch(stage: Stage, at_docker: DockerLab) -> Callable[..., Run]:
    """Starts a spec in containers; `image` holds more of `env.image`, `settings` more of `env`."""

    def start(spec: dict[str, Any], *, on: str = "docker", image: dict[str, Any] | None = None, **env: Any) -> Run:
        spec = {**spec, "env": {"image": {"name": BASE, **(image or {})}, **env}}
        return stage.launch(spec, options=Options(allow_dirty=True, on=on))

    return start
