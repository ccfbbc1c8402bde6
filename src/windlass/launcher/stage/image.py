"""Image of an experiment: pinned for a plan, and built or pulled for a launch or on request."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from windlass import spec
from windlass.core.errors import NotFoundError, PreconditionError, Problem, SpecError, UnreachableError, WindlassError
from windlass.pin.code.pinned import CodePin
from windlass.pin.image.pinned import NO_IMAGE, BuiltImage, ImagePin
from windlass.plan.plan import Plan
from windlass.plan.site import Site
from windlass.runs.home import Home
from windlass.spec.load import load_experiment

if TYPE_CHECKING:
    from windlass.pin.image.engine import ImageEngine
    from windlass.pin.image.pinning import ImageSource
    from windlass.pin.image.records import ImageRecord
    from windlass.runs.store import RunFolder

__all__ = ["build_image", "ensure_run_image", "find_image", "image_presence", "pin_image", "reference_at", "runs_of"]

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def pin_image(
    experiment: spec.Experiment,
    code: CodePin,
    folder: Path,
    site: Site,
    home: Home,
    log: Callable[[str], None] = lambda line: None,
) -> ImagePin:
    """Pin `env.image` for a site or machine.

    Nothing is built or written. `log` gets a line before a registry is queried.

    Raises:
        PreconditionError: the image must be built, and the place has no engine and no registry is set.
        WindlassError: there is no such Dockerfile or image.
    """
    from windlass.pin.image.pinning import (  # lazy: most experiments have no image
        is_image_file,  # lazy: as above
        pin_built,
        pin_named,
    )

    if site.profile is None and site.backend != "docker":
        return NO_IMAGE  # the place has no containers; the plan reports that
    image = experiment.env.image
    if site.backend == "beaker" and image.name.startswith("beaker:"):
        return ImagePin(kind="named", name=image.name, has_own_code=image.has_own_code, network=image.network)
    if site.backend == "beaker":
        image = replace(image, name=re.sub(r"\Adocker:(?!//)", "", image.name))
    if site.profile is None and is_image_file(image.name):
        raise PreconditionError(
            f"cannot use the image file `{image.name}` (env.image) at {site.name}, which needs an image name",
            hint="use env.image=NAME:TAG or env.image=Dockerfile; image files need a site with apptainer or enroot",
            code="invalid-name",
        )
    engine = _engine(site)
    platform = _platform(site)
    if image.name:
        try:
            return pin_named(
                image.name,
                engine=engine,
                has_own_code=image.has_own_code,
                network=image.network,
                platform=platform,
                is_elsewhere=site.profile is not None,
                log=log,
            )
        except UnreachableError:
            if site.profile is None:
                raise
            # The site's own runtime pulls it by its tag.
            return ImagePin(
                kind="named", name=image.name, has_own_code=image.has_own_code, network=image.network, platform=platform
            )
    if site.profile is not None and not image.registry:
        raise _needs_registry(image.dockerfile, site)
    return pin_built(
        _source(image),
        code,
        folder,
        engine=engine,
        has_own_code=image.has_own_code,
        network=image.network,
        store=home.cache / "code.git",
        platform=platform,
        log=log,
    )


def image_presence(plan: Plan) -> str:
    """Describe whether this machine has the plan's image; empty for other sites. Calls the engine once."""
    pin = plan.pins.image
    engine = _engine(plan.site) if pin.kind != "none" and plan.site.profile is None else None
    if engine is None:
        return ""
    from windlass.pin.image.ensuring import has_image  # lazy: most experiments have no image

    try:
        is_here = has_image(pin, engine)
    except UnreachableError as error:
        return f"unknown whether it is on this machine: {error.message}"
    what = "built" if pin.kind == "built" else "pulled"
    return f"in {engine.kind} on this machine" if is_here else f"not in {engine.kind} yet: it will be {what} at launch"


def ensure_run_image(plan: Plan, folder: Path, home: Home, *, log: Callable[[str], None]) -> BuiltImage | None:
    """Build or pull the plan's image with this machine's engine; None if no engine is needed.

    Args:
        folder: the user's code folder; its repository has the pinned commit.
    """
    pin = plan.pins.image
    if pin.kind == "none" or (pin.kind == "named" and plan.site.profile is not None):
        return None
    if plan.site.profile is not None and not pin.registry:  # a rerun's pin may come from a run on this machine
        raise _needs_registry(pin.dockerfile, plan.site)
    from windlass.pin.image.engine import find_engine
    from windlass.pin.image.ensuring import ImageMaker, ensure_image  # lazy: as above

    engine = find_engine(_kind(plan.site))
    maker = ImageMaker(
        engine=engine,
        code=plan.pins.code,
        folder=folder,
        cache=home.cache,
        store=home.cache / "code.git",
        secrets=_secrets(pin, home),
        log=log,
    )
    return ensure_image(pin, maker)


def _needs_registry(dockerfile: str, site: Site) -> PreconditionError:
    return PreconditionError(
        f"{site.name} needs a registry for the image that `env.image: {dockerfile}` builds",
        hint="set env.image.registry=ghcr.io/LAB/PROJECT: the image is pushed there, and jobs use it by digest",
        code="image-unsupported",
    )


def reference_at(plan: Plan, built: BuiltImage | None) -> str:
    """Return a reference to the image for a plan's containers, by digest if that is known."""
    pin, profile = plan.pins.image, plan.site.profile
    if profile is None:
        return built.reference if built is not None else ""
    if pin.kind == "named":
        return f"{_address(pin.name)}@{pin.digest}" if pin.digest else pin.name
    return f"docker://{pin.registry}@{built.digest}" if built is not None else ""


def _address(name: str) -> str:
    from windlass.pin.image.naming import parse_reference  # lazy: most experiments have no image

    return f"docker://{parse_reference(name).full_name}"


def _engine(site: Site) -> ImageEngine | None:
    """Return the engine whose images a plan prefers; None if registries are queried instead."""
    from windlass.pin.image.engine import find_engine  # lazy: most experiments have no image

    try:
        return find_engine(_kind(site))
    except PreconditionError:
        return None


def _kind(site: Site) -> str:
    return site.name if site.profile is None else ""


def _platform(site: Site) -> str:
    """Return the platform of the site's nodes from its profile; empty for this machine."""
    profile = site.profile
    partition = profile.partitions.get(site.partition) if profile is not None else None
    arch = partition.arch if partition is not None else ""
    return f"linux/{_ARCHITECTURES.get(arch, arch)}" if arch else ""


def _source(image: spec.Image) -> ImageSource:
    from windlass.pin.image.naming import parse_reference  # lazy: as above
    from windlass.pin.image.pinning import ImageSource  # lazy: as above

    variant = image.variants.get(image.variant) if image.variant else None
    registry = re.sub(r"\A(?:docker|https?)://", "", image.registry).rstrip("/")
    if registry:
        parse_reference(registry)  # fail before a build
    args = {name: str(value) for name, value in image.args.items()}
    if variant is not None:
        args |= {name: str(value) for name, value in variant.args.items()}
    return ImageSource(
        dockerfile=image.dockerfile,
        context=image.context,
        target=(variant.target if variant is not None else "") or image.target,
        args=args,
        variant=image.variant,
        secrets=image.secrets,
        registry=registry,
    )


def _secrets(pin: ImagePin, home: Home) -> dict[str, bytes]:
    if not pin.secrets:
        return {}
    from windlass.secrets.lookup import open_secrets  # lazy: few images need secrets

    return open_secrets(home.path).require(pin.secrets)


# --- on request ---------------------------------------------------------------------------------------------------


def build_image(
    file: Path,
    overrides: Sequence[str] = (),
    *,
    on: str = "",
    snapshot: bool = False,
    home: Home | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> tuple[ImagePin, BuiltImage]:
    """Build or pull an experiment file's image, without a launch. Blocking, idempotent.

    Args:
        on: the engine (`docker` or `podman`); the first installed one if empty.

    Raises:
        SpecError: the file has no `env.image`.
        WindlassError: the build or pull failed.
    """
    from windlass.pin.code.pinning import pin_code  # lazy: the rest of this module is part of every launch
    from windlass.pin.image.engine import find_engine
    from windlass.pin.image.ensuring import ImageMaker, ensure_image  # lazy: as above

    home = home or Home.default()
    experiment = load_experiment(file, overrides).value
    if not experiment.env.image:
        hint = "add `env: {image: Dockerfile}`; `windlass init NAME --docker` writes an example"
        raise SpecError([Problem(f"{file} has no `env.image`", "missing-key", hint=hint)])
    engine = find_engine(on)
    folder = file.absolute().parent / experiment.code
    code = pin_code(folder, snapshot=snapshot, store=home.cache / "code.git")
    pin = pin_image(experiment, code, folder, Site(name=engine.kind, backend="docker"), home)
    maker = ImageMaker(
        engine=engine,
        code=code,
        folder=folder,
        cache=home.cache,
        store=home.cache / "code.git",
        secrets=_secrets(pin, home),
        log=log,
    )
    return pin, ensure_image(pin, maker)


def runs_of(record: ImageRecord, home: Home) -> list[str]:
    """Return the ids of runs whose plan pins an image. Reads the plan of every run."""
    from windlass.runs.store import RunFolder, run_ids  # lazy: as above

    return [run for run in run_ids(home) if _is_of(_image_of(RunFolder(home.runs / run)), record)]


def find_image(word: str, home: Home, folder: Path) -> ImageRecord:
    """Find an image by commit, tag, key, id, digest, run, or a revision of the repository at `folder`.

    Raises:
        NotFoundError: no image matches.
    """
    from windlass.pin.image.records import find_record, list_records  # lazy: as above

    try:
        return find_record(home.cache, word)
    except NotFoundError:
        commit = _commit(word, folder)
        pin = _image_of_run(word, home)
        for record in list_records(home.cache):
            if (commit and commit in record.commits) or _is_of(pin, record):
                return record
        raise


def _image_of_run(word: str, home: Home) -> dict[str, object]:
    from windlass.runs.store import find  # lazy: as above

    try:
        return _image_of(find(home, word))
    except WindlassError:
        return {}  # it is not a run


def _image_of(run: RunFolder) -> dict[str, object]:
    """Return the image's pin in a run's plan; empty if the run is incomplete or damaged."""
    try:
        pins = run.plan().get("pins")
    except WindlassError:
        return {}
    image = pins.get("image") if isinstance(pins, dict) else None
    return image if isinstance(image, dict) else {}


def _commit(word: str, folder: Path) -> str:
    from windlass.pin.code.pinning import pin_code  # lazy: as above

    try:
        return pin_code(folder, revision=word).commit
    except WindlassError:
        return ""  # it is not a revision of this repository


def _is_of(pin: dict[str, object], record: ImageRecord) -> bool:
    digests = {record.image_id, record.digest} - {""}
    return pin.get("key") == record.key if pin.get("key") else pin.get("digest") in digests
