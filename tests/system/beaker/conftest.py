"""A fake Beaker per module, and a stage per test with a bucket of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.beaker.beaker_stage import BeakerStage
from windlass.runs.home import Home
from windlass.testing.beaker import FakeBeaker


@pytest.fixture(scope="module")
def module_fake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeBeaker]:
    with FakeBeaker(tmp_path_factory.mktemp("beaker")) as found:
        yield found


@pytest.fixture
def fake(module_fake: FakeBeaker, monkeypatch: pytest.MonkeyPatch) -> FakeBeaker:
    for name, value in module_fake.environ.items():
        monkeypatch.setenv(name, value)
    return module_fake


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> str:
    """A bucket of this test alone."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:40]


@pytest.fixture
def home(home: Path, fake: FakeBeaker, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """WINDLASS_HOME on the bucket."""
    path = fake.weka(bucket) / "home"
    path.mkdir()
    monkeypatch.setenv("WINDLASS_HOME", str(path))
    return path


@pytest.fixture
def beaker_stage(home: Path, fake: FakeBeaker, bucket: str) -> Iterator[BeakerStage]:
    found = BeakerStage(fake.weka(bucket), Home(home), fake, bucket)
    yield found
    found.close()
