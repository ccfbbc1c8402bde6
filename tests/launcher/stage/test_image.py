from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from windlass.core.errors import NotFoundError, PreconditionError, UnreachableError
from windlass.launcher.archive.exporting import FILES
from windlass.launcher.client import BILL
from windlass.launcher.stage import image as images
from windlass.launcher.stage.image import ensure_run_image, find_image, pin_image, reference_at
from windlass.launcher.stage.stage import _image_facts
from windlass.pin.code.pinned import NO_CODE
from windlass.pin.image import pinning
from windlass.pin.image.engine import ImageEngine, ImageFacts
from windlass.pin.image.pinned import NO_IMAGE, BuiltImage, ImagePin
from windlass.pin.image.records import ImageRecord, write_record
from windlass.plan.pins import Pins
from windlass.plan.plan import Plan
from windlass.plan.site import Site
from windlass.runs.home import Home
from windlass.runs.store import create
from windlass.sites.profile import Profile
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
    with pytest.raises(PreconditionError, match="mine needs a registry for the image") as caught:
        pin_image(experiment(Image(dockerfile="Dockerfile")), NO_CODE, home, SLURM, Home(home))
    assert caught.value.code == "image-unsupported"
    assert "env.image.registry=" in caught.value.hint


def test_an_image_that_this_machine_alone_has_is_not_started_elsewhere(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its id is not a digest that a registry knows, so a job at a site could never get it."""

    class Local(ImageEngine):
        def find(self, name: str) -> ImageFacts | None:
            return ImageFacts(image_id=DIGEST)

    def refuse(reference: object) -> str:
        raise NotFoundError(f"the registry docker.io has no image `{reference}`", hint="", code="image-not-found")

    monkeypatch.setattr(images, "_engine", lambda _: Local(kind="docker", program="docker"))
    monkeypatch.setattr(pinning, "fetch_digest", refuse)
    found = pin_image(experiment(Image(name="mine:1")), NO_CODE, home, DOCKER, Home(home))
    assert found.digest == DIGEST
    with pytest.raises(NotFoundError) as caught:
        pin_image(experiment(Image(name="mine:1")), NO_CODE, home, SLURM, Home(home))
    assert (
        caught.value.message == "the registry docker.io has no image `mine:1`, and docker has it only on this machine"
    )


def test_a_pin_without_a_registry_is_not_taken_to_a_site(home: Path) -> None:
    plan = Plan(
        name="t", site=SLURM, pins=Pins(image=ImagePin(kind="built", name="n", key="k", dockerfile="Dockerfile"))
    )
    with pytest.raises(
        PreconditionError, match=r"mine needs a registry for the image that `env\.image: Dockerfile` builds"
    ):
        ensure_run_image(plan, home, Home(home), log=print)


@pytest.mark.parametrize("name", ["/images/x.sif", "oras://host/x"])
def test_engines_start_no_image_files(name: str, home: Path) -> None:
    with pytest.raises(PreconditionError, match=f"cannot use the image file `{name}`") as caught:
        pin_image(experiment(Image(name=name)), NO_CODE, home, DOCKER, Home(home))
    assert caught.value.code == "invalid-name"
    assert pin_image(experiment(Image(name=name)), NO_CODE, home, SLURM, Home(home)).name == name


def test_a_registry_that_can_have_no_such_name_is_refused_by_the_plan(home: Path) -> None:
    image = Image(dockerfile="Dockerfile", registry="Ghcr.io/Lab/Project")
    with pytest.raises(PreconditionError, match=r"`Ghcr\.io/Lab/Project` is not a valid image name"):
        pin_image(experiment(image), NO_CODE, home, SLURM, Home(home))


@pytest.mark.parametrize("word", ["exp-abcd2345", "exp", "last", "2345"])
def test_an_image_is_found_by_any_word_for_a_run(word: str, home: Path) -> None:
    place = Home(home)
    record = ImageRecord(
        key="k" * 64, engine="docker", name="n", image_id="sha256:i", commits=("c",), tags=(), built_at=1.0, bases={}
    )
    write_record(place.cache, record)
    folder = home / "runs" / "exp-abcd2345"
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps({"pins": {"image": {"kind": "built", "key": record.key}}}))
    assert find_image(word, place, home) == record
    with pytest.raises(NotFoundError):
        find_image("other", place, home)


def test_a_place_without_containers_pins_none(home: Path) -> None:
    assert pin_image(experiment(Image(name="torch")), NO_CODE, home, Site(), Home(home)) == NO_IMAGE


def test_a_registry_that_does_not_answer_leaves_the_tag_to_the_site(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> str:
        raise UnreachableError("nobody answers", hint="", code="remote-unreachable")

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


def test_the_bill_of_materials_goes_with_the_run(tmp_path: Path, home: Path) -> None:
    """The one beside the image in the cache goes with the cache."""
    run = create(Home(home), "exp-abcd2345", {})
    bill = tmp_path / "key.spdx.json"
    bill.write_text('{"spdxVersion": "SPDX-2.3"}')
    image = BuiltImage(reference="r", image_id="sha256:1", sbom=str(bill))
    assert _image_facts(image, run)["sbom"] == BILL
    bill.unlink()
    assert (run.path / BILL).read_text() == '{"spdxVersion": "SPDX-2.3"}'
    assert BILL in FILES, "an archive lacks it"
    assert _image_facts(replace(image, sbom=""), run)["sbom"] == ""
