"""A fake Beaker, and the genuine client that talks to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from beaker import Beaker, BeakerExperimentSpec

from windlass.testing.beaker import FakeBeaker

Submit = Callable[..., Any]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBeaker]:
    with FakeBeaker(tmp_path / "beaker") as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture
def client(fake: FakeBeaker) -> Iterator[Beaker]:
    with Beaker.from_env(check_for_upgrades=False) as client:
        yield client


def make_spec(*command: str, retries: int | None = None, **task: Any) -> BeakerExperimentSpec:
    """A spec with one task, as people write them with the client."""
    spec = BeakerExperimentSpec.new(
        task_name=task.pop("task_name", "main"),
        docker_image="anything",
        priority=task.pop("priority", "normal"),
        command=list(command),
        **task,
    )
    return spec if retries is None else spec.with_retries(retries)


@pytest.fixture
def submit(client: Beaker) -> Submit:
    """Submit a command with settings of its task; gives the workload."""

    def do(*command: str, name: str = "run", **task: Any) -> Any:
        return client.experiment.create(spec=make_spec(*command, **task), name=name)

    return do
