"""A Beaker of one's own, and the account that uses it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.backends.beaker.service import BeakerService
from windlass.testing.beaker import FakeBeaker


@pytest.fixture
def beaker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBeaker]:
    """A fake Beaker, and the environment in which its client finds it."""
    for name in ("BEAKER_TOKEN", "BEAKER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with FakeBeaker(tmp_path / "beaker") as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        yield fake


@pytest.fixture
def service(beaker: FakeBeaker) -> Iterator[BeakerService]:
    """The genuine client of that Beaker."""
    made = BeakerService(deadline_s=120.0)
    yield made
    made.close()
