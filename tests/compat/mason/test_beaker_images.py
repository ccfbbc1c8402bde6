"""Beaker's images through the genuine client, against a fake Beaker; Docker is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.backends.beaker.service import BeakerService
from windlass.compat.mason.build import BeakerImages
from windlass.testing.beaker import FakeBeaker

DESCRIPTION = "Git commit: 0123456; CUDA: 12"


class Docker:
    """What Beaker's client asks of Docker's: an image, a tag, a push."""

    def __init__(self) -> None:
        self.images, self.api, self.done = self, self, list[str]()
        self.id = "sha256:1"

    def get(self, tag: str) -> Docker:
        self.done.append(f"get {tag}")
        return self

    def tag(self, tag: str) -> None:
        self.done.append("tag")

    def push(self, tag: str, **_: Any) -> list[dict[str, str]]:
        self.done.append("push")
        return []


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BeakerImages]:
    for name in ("BEAKER_TOKEN", "BEAKER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with FakeBeaker(tmp_path / "beaker") as fake:
        for name, value in fake.environ.items():
            monkeypatch.setenv(name, value)
        fake.add_image("old", description=DESCRIPTION)
        service = BeakerService(deadline_s=120.0)
        yield BeakerImages(service)
        service.close()


def test_an_image_is_found_unnamed_and_sent_anew(images: BeakerImages, monkeypatch: pytest.MonkeyPatch) -> None:
    docker = Docker()
    monkeypatch.setattr("docker.from_env", lambda: docker)
    user = images.user()
    old = images.find(f"{user}/old")
    assert old is not None
    assert old.description == DESCRIPTION
    assert images.find(f"{user}/gone") is None
    images.unname(old)
    assert images.find(f"{user}/old") is None
    images.upload("old", "old", workspace="lab/main", description="Git commit: 89abcde; CUDA: 12")
    new = images.find(f"{user}/old")
    assert new is not None
    assert (new.id == old.id, new.description) == (False, "Git commit: 89abcde; CUDA: 12")
    assert docker.done == ["get old", "tag", "push"]
