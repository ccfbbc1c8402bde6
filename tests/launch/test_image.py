from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from windlass.core.errors import PreconditionError, UnreachableError
from windlass.launch import image as images
from windlass.launch.image import pin_image, reference_at
from windlass.pin.code import NO_CODE
from windlass.pin.image import NO_IMAGE, BuiltImage, ImagePin, pinning
from windlass.plan import Pins, Plan, Site
from windlass.runs.home import Home
from windlass.sites import Profile
from windlass.spec import Experiment, Image

DIGEST = "sha256:" + "d" * 64
SLURM = Site.of(Profile(name="mine"))
DOCKER = Site(name="docker", backend="docker")


def experiment(image: Image) -> Experiment:
    made = Experiment(name="t", run="true")
    return replace(made, env=replace(made.env, image=image))


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_engine", lambda _: None)


def test_a_site_without_an_engine_needs_a_registry(home: Path) -> None:
    with pytest.raises(PreconditionError, match="mine gets images from a registry alone") as caught:
        pin_image(experiment(Image(dockerfile="Dockerfile")), NO_CODE, home, SLURM, Home(home))
    assert caught.value.code == "image-needs-registry"
    assert "env.image.registry=" in caught.value.hint


def test_a_place_without_containers_pins_none(home: Path) -> None:
    assert pin_image(experiment(Image(name="torch")), NO_CODE, home, Site(), Home(home)) == NO_IMAGE


def test_a_registry_that_does_not_answer_leaves_the_tag_to_the_site(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> str:
        raise UnreachableError("nobody answers", hint="", code="registry-unreachable")

    monkeypatch.setattr(pinning, "fetch_digest", refuse)
    found = pin_image(experiment(Image(name="torch:2")), NO_CODE, home, SLURM, Home(home))
    assert (found.name, found.digest) == ("torch:2", "")
    with pytest.raises(UnreachableError):
        pin_image(experiment(Image(name="torch:2")), NO_CODE, home, DOCKER, Home(home))


@pytest.mark.parametrize(
    ("site", "pin", "reference"),
    [
        (DOCKER, ImagePin(kind="built", name="n", key="k"), "sha256:id"),
        (
            SLURM,
            ImagePin(kind="built", name="n", key="k", registry="ghcr.io/lab/x"),
            f"docker://ghcr.io/lab/x@{DIGEST}",
        ),
        (SLURM, ImagePin(kind="named", name="python:3", digest=DIGEST), f"docker://docker.io/library/python@{DIGEST}"),
        (SLURM, ImagePin(kind="named", name="/images/x.sif"), "/images/x.sif"),
        (SLURM, ImagePin(kind="named", name="torch:2"), "torch:2"),
    ],
)
def test_what_containers_are_started_from(site: Site, pin: ImagePin, reference: str) -> None:
    plan = Plan(name="t", site=site, pins=Pins(image=pin))
    built = BuiltImage(reference="sha256:id", image_id="sha256:id", digest=DIGEST) if pin.kind == "built" else None
    assert reference_at(plan, built) == reference
