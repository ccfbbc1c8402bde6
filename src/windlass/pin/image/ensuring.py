"""Provisioning of the image that a pin names: found, pulled, or built once for any number of processes."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from pathlib import Path

from windlass.core.clock import SystemClock
from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, PreconditionError, WindlassError
from windlass.core.files import is_locked, lock, sha256_file
from windlass.core.version import VERSION
from windlass.pin.code.checkouts import checkout
from windlass.pin.code.pinned import CodePin
from windlass.pin.image.building import ImageRecipe, build, find_builder
from windlass.pin.image.context import write_context
from windlass.pin.image.dockerfile import parse_dockerfile
from windlass.pin.image.engine import ImageEngine, ImageFacts
from windlass.pin.image.naming import CACHE_PREFIX, commit_tag, key_tag, parse_reference, sanitised
from windlass.pin.image.packages import SBOM_SUFFIX, list_packages, write_sbom
from windlass.pin.image.pinned import BuiltImage, ImagePin
from windlass.pin.image.records import (
    ImageRecord,
    images_folder,
    read_record,
    sweep_unfinished,
    touch_record,
    write_record,
)
from windlass.pin.image.registry import fetch_digest

__all__ = ["KEY_LABEL", "ImageMaker", "ensure_image", "has_image"]

KEY_LABEL = "windlass.key"
_LOCK_FILES = ("uv.lock", "pylock.toml", "requirements.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageMaker:
    """Engine, folders and options needed to get an image onto this machine.

    Attributes:
        folder: the folder that was pinned as code; its repository has the commit.
        cache: `<home>/cache`.
        store: windlass's repository, for snapshots of folders outside any repository.
        secrets: values for `RUN --mount=type=secret`, by name.
        has_packages: whether to list installed packages; takes a few seconds, once per image.
    """

    engine: ImageEngine
    code: CodePin
    folder: Path
    cache: Path
    store: Path | None = None
    secrets: Mapping[str, bytes] = field(default_factory=dict)
    has_packages: bool = True
    log: Callable[[str], None] = lambda line: None


def ensure_image(pin: ImagePin, maker: ImageMaker) -> BuiltImage:
    """Ensure that the engine has the pin's image. Idempotent; safe for concurrent processes. Blocks while it is built.

    An unchanged image costs one call of the engine. The commit is added to the image's commits, with a tag.

    Raises:
        PreconditionError: the build failed, or a tag no longer names the pinned image.
        WindlassError: the engine or the registry fails.
    """
    if pin.kind == "named":
        return _ensure_named(pin, maker)
    record = _known(pin, maker)
    if record is not None and (maker.code.commit in record.commits):
        touch_record(maker.cache, record)
        return record.built(is_hit=True)
    gate = images_folder(maker.cache) / f"{pin.key}.lock"
    if is_locked(gate):
        maker.log(f"waiting for another process to finish building image {pin.key[:12]}")
    with lock(gate):
        record = _known(pin, maker)
        is_hit = record is not None
        if record is None:
            sweep_unfinished(maker.cache, pin.key)
            record, is_hit = _make(pin, maker)
        if maker.code.commit not in record.commits:
            record = _add_commit(pin, record, maker)
        write_record(maker.cache, record)
    return record.built(is_hit=is_hit)


def name_of(pin: ImagePin) -> str:
    """Return the engine's name for a pin's image: by key if it is built, by digest if that is known."""
    if pin.kind == "built":
        return _tagged(pin)
    return parse_reference(pin.name).at(pin.digest) if pin.digest else pin.name


def has_image(pin: ImagePin, engine: ImageEngine) -> bool:
    """Return True if the engine already has the pin's image; calls the engine once or twice.

    Raises:
        UnreachableError: the engine does not respond.
    """
    if pin.kind == "built":
        return engine.find(_tagged(pin)) is not None
    return any(
        engine.look(parse_reference(pin.name).at(pin.digest), pin.digest) if pin.digest else engine.look(pin.name)
    )


# --- named --------------------------------------------------------------------------------------------------------


def _ensure_named(pin: ImagePin, maker: ImageMaker) -> BuiltImage:
    reference = parse_reference(pin.name)
    wanted = reference.at(pin.digest)
    found = maker.engine.look(wanted, pin.digest)
    facts, is_hit = found.get(wanted) or found.get(pin.digest), True
    if facts is None:
        facts, is_hit = _pull_named(pin, wanted, maker), False
    _check_platform(facts, pin, pin.name)
    packages: tuple[str, ...] = ()
    if maker.has_packages:
        packages = _packages_of(facts, maker)
    return BuiltImage(
        reference=wanted if facts.digest_of(reference.name) == pin.digest else facts.image_id,
        image_id=facts.image_id,
        digest=facts.digest_of(reference.name),
        workdir=facts.workdir,
        packages=packages,
        is_hit=is_hit,
    )


def _pull_named(pin: ImagePin, wanted: str, maker: ImageMaker) -> ImageFacts:
    maker.log(f"pulling {wanted}")
    try:
        maker.engine.pull(wanted, maker.log)
    except NotFoundError as error:
        now = maker.engine.find(pin.name)
        there = now.digest_of(parse_reference(pin.name).name) or now.image_id if now else ""
        if there and there != pin.digest:
            raise _moved(pin.name, there, pin.digest) from error
        raise
    facts = maker.engine.find(wanted)
    if facts is None:
        raise PreconditionError(
            f"`{maker.engine.kind}` pulled {wanted} but does not have the image",
            hint="try again",
            code="image-not-found",
        )
    return facts


def _packages_of(facts: ImageFacts, maker: ImageMaker) -> tuple[str, ...]:
    """Return the packages in an image; they are listed only once for each image id."""
    key = facts.image_id.removeprefix("sha256:")
    known = read_record(maker.cache, key, maker.engine.kind)
    if known is not None:
        return known.packages
    packages = list_packages(maker.engine, facts.image_id)
    record = ImageRecord(
        key=key,
        engine=maker.engine.kind,
        name="",
        image_id=facts.image_id,
        commits=(),
        tags=facts.tags,
        built_at=0.0,
        platform=facts.platform,
        size_bytes=facts.size_bytes,
        bases={},
        packages=packages,
    )
    write_record(maker.cache, record)
    return packages


# --- built --------------------------------------------------------------------------------------------------------


def _known(pin: ImagePin, maker: ImageMaker) -> ImageRecord | None:
    """Return the record for a pin, if its image is still in the engine under its tag."""
    record = read_record(maker.cache, pin.key, maker.engine.kind)
    if record is None:
        return None
    name = _tagged(pin)
    facts = maker.engine.find(name)
    if facts is None:
        return None
    if facts.image_id != record.image_id:
        raise _moved(name, facts.image_id, record.image_id)
    return record if not pin.registry or record.digest else None


def _make(pin: ImagePin, maker: ImageMaker) -> tuple[ImageRecord, bool]:
    """Find the image by its tag, locally or in the registry, or build it; return its record, and whether it existed."""
    name = _tagged(pin)
    facts = maker.engine.find(name)
    if facts is None and pin.registry:
        facts = _from_registry(pin, maker)
    is_hit = facts is not None
    if facts is None:
        _build(pin, maker)
        facts = _built(pin, maker)
    _check_key(facts, pin, name)
    _check_platform(facts, pin, name)
    digest = _publish(pin, facts.image_id, maker) if pin.registry else ""
    folder = images_folder(maker.cache)
    sbom = write_sbom(maker.engine, facts.image_id, folder / f"{pin.key}{SBOM_SUFFIX}") if maker.has_packages else None
    record = ImageRecord(
        key=pin.key,
        engine=maker.engine.kind,
        name=pin.name,
        image_id=facts.image_id,
        commits=(),
        tags=(),
        built_at=SystemClock().now(),
        digest=digest,
        registry=pin.registry,
        workdir=facts.workdir,
        platform=facts.platform,
        dockerfile=pin.dockerfile,
        variant=pin.variant,
        size_bytes=facts.size_bytes,
        bases=dict(pin.bases),
        packages=list_packages(maker.engine, facts.image_id) if maker.has_packages else (),
        sbom="" if sbom is None else str(sbom),
    )
    return record, is_hit


def _build(pin: ImagePin, maker: ImageMaker) -> None:
    folder = images_folder(maker.cache)
    log_file = folder / f"{pin.key}.log"
    log_file.write_text("")
    maker.log(f"building the image {pin.name} {commit_tag(maker.code.commit)} (log: {log_file})")
    _check_bases(pin, maker)
    with _working(folder / f"{pin.key}.building") as place:
        recipe = _recipe(pin, maker, place)
        builder = find_builder(maker.engine)
        if recipe.cache and builder.flavour == "classic":  # it takes layers only from local images
            with contextlib.suppress(WindlassError):
                maker.engine.pull(recipe.cache, maker.log)
        build(maker.engine, builder, recipe, log_file, maker.secrets)
    _check_bases(pin, maker)


@contextlib.contextmanager
def _working(place: Path) -> Iterator[Path]:
    """Yield a private folder for this build; since the lock is held, old content is from a dead builder."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _recipe(pin: ImagePin, maker: ImageMaker, place: Path) -> ImageRecipe:
    """Write the builder's input: the pinned tree without ignored files, and a Dockerfile that names bases by digest."""
    from windlass.pin.code.reading import read_tree  # lazy: a hit reads no tree
    from windlass.pin.image.context import read_context, read_dockerfile  # lazy: as above

    with read_tree(maker.code, maker.folder, store=maker.store) as tree:
        text = read_dockerfile(tree, pin.dockerfile)
        context = read_context(tree, pin.context, pin.dockerfile)
    code = checkout(maker.code, maker.folder, place / "code", store=maker.store)
    lock_sha256 = _lock_in(code / pin.context)
    write_context(code / pin.context, place / "context", context.ignore)
    parsed = parse_dockerfile(text, path=pin.dockerfile, args=pin.args, target=pin.target, platform=pin.platform)
    pinned = {
        name: parse_reference(name).at(digest)
        for name, digest in pin.bases.items()
        if _is_by_digest(name, digest, maker)
    }
    (place / "Dockerfile").write_text(parsed.pinned(pinned))
    return ImageRecipe(
        context=place / "context",
        dockerfile=place / "Dockerfile",
        tag=_unfinished(pin),
        target=pin.target,
        args=pin.args,
        labels=_labels(pin, maker, lock_sha256),
        cache=f"{pin.registry}:{_cache_tag(pin)}" if pin.registry else "",
        local_cache=images_folder(maker.cache) / "layers",
        platform=pin.platform,
    )


def _is_by_digest(name: str, digest: str, maker: ImageMaker) -> bool:
    """Return True if a base image can be named by digest; one that only the engine has is named by its tag."""
    facts = maker.engine.find(name)
    return facts is None or facts.image_id != digest


def _check_bases(pin: ImagePin, maker: ImageMaker) -> None:
    """Raise if a base image that only the engine has was replaced since it was pinned."""
    for name, digest in pin.bases.items():
        facts = maker.engine.find(name)
        if facts is None or digest in (facts.image_id, facts.digest_of(parse_reference(name).name)):
            continue
        if any(each.endswith(f"@{digest}") for each in facts.digests) or not facts.digests:
            raise _moved(name, facts.image_id, digest)


def _lock_in(folder: Path) -> str:
    """Return the digest of the lock file in the context; empty without one."""
    return next((sha256_file(folder / name) for name in _LOCK_FILES if (folder / name).is_file()), "")


def _labels(pin: ImagePin, maker: ImageMaker, lock_sha256: str) -> dict[str, str]:
    code = maker.code
    labels = {
        KEY_LABEL: pin.key,
        "windlass.version": VERSION,
        "windlass.tree": code.tree,
        "windlass.lock": lock_sha256,
        "org.opencontainers.image.revision": code.commit,
        "org.opencontainers.image.source": code.remote,
        "org.opencontainers.image.title": pin.name,
    }
    return {name: value for name, value in labels.items() if value}


def _from_registry(pin: ImagePin, maker: ImageMaker) -> ImageFacts | None:
    """Pull the image with this key from the registry; return None if it was never pushed."""
    there = f"{pin.registry}:{key_tag(pin.key)}"
    try:
        fetch_digest(parse_reference(there))
    except NotFoundError:
        return None
    maker.engine.pull(there, maker.log)
    facts = maker.engine.find(there)
    if facts is None:
        return None
    _check_key(facts, pin, there)
    maker.engine.tag(facts.image_id, _tagged(pin))
    return facts


def _publish(pin: ImagePin, image_id: str, maker: ImageMaker) -> str:
    """Push the image under its key, and as the cache for the next build; return its digest."""
    there = parse_reference(f"{pin.registry}:{key_tag(pin.key)}")
    for tag in (there.tag, _cache_tag(pin)):
        name = str(there.with_tag(tag))
        maker.engine.tag(image_id, name)
        maker.log(f"pushing {name}")
        maker.engine.push(name, maker.log)
    return fetch_digest(there)


def _add_commit(pin: ImagePin, record: ImageRecord, maker: ImageMaker) -> ImageRecord:
    """Add a commit to the image's record, and tag the image locally and, if there is one, in the registry."""
    tag = _commit_tag(pin, maker)
    name = f"{pin.name}:{tag}"
    maker.engine.tag(record.image_id, name)
    if pin.registry:
        there = f"{pin.registry}:{tag}"
        maker.engine.tag(record.image_id, there)
        maker.engine.push(there, maker.log)
    return record.with_commit(maker.code.commit, name)


def _commit_tag(pin: ImagePin, maker: ImageMaker) -> str:
    """Return the tag for the commit and variant, with the key added if another image of the commit has that tag."""
    tag = commit_tag(maker.code.commit) + (f"-{sanitised(pin.variant)}" if pin.variant else "")
    present = maker.engine.find(f"{pin.name}:{tag}")
    is_other = present is not None and present.labels.get(KEY_LABEL) != pin.key
    return f"{tag}-{pin.key[:8]}" if is_other else tag


def _built(pin: ImagePin, maker: ImageMaker) -> ImageFacts:
    """Return the facts about the image that was built, after giving it its final name."""
    facts = maker.engine.find(_unfinished(pin))
    if facts is None:
        raise PreconditionError(
            f"the build of {_tagged(pin)} exited 0, but `{maker.engine.kind}` does not have the image",
            hint="check that the builder loads its images into this engine",
            code="build-failed",
        )
    maker.engine.tag(facts.image_id, _tagged(pin))
    maker.engine.remove(_unfinished(pin))
    return facts


def _unfinished(pin: ImagePin) -> str:
    """Return the name for an image while it is built.

    A killed client's build may still finish, and must not replace the name in use.
    """
    return f"{pin.name}:building-{pin.key[:24]}"


def _tagged(pin: ImagePin) -> str:
    return f"{pin.name}:{key_tag(pin.key)}"


def _cache_tag(pin: ImagePin) -> str:
    return CACHE_PREFIX + pin.name.rpartition("/")[2] + (f"-{sanitised(pin.variant)}" if pin.variant else "")


def _check_key(facts: ImageFacts, pin: ImagePin, name: str) -> None:
    found = facts.labels.get(KEY_LABEL, "")
    if found != pin.key:
        raise _moved(name, facts.image_id, f"the image of the key {pin.key[:12]}")


def _check_platform(facts: ImageFacts, pin: ImagePin, name: str) -> None:
    if pin.platform and facts.platform != pin.platform:
        raise PreconditionError(
            f"the image {name} is for {facts.platform}, not for {pin.platform}",
            hint=f"use or build one for {pin.platform}",
            code="wrong-architecture",
        )


def _moved(name: str, now: str, before: str) -> PreconditionError:
    return PreconditionError(
        f"the tag `{name}` has moved: it is {now}, but {before} was pinned",
        hint="plan again to use the new image, or name the image by digest; if the tag is windlass's own, remove it and "
        "the image is built again",
        code="input-changed",
    )
