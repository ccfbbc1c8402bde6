"""Pinning of `env.image`: nothing is built or written, and usually the network is not used."""

from __future__ import annotations

import hashlib
import json
import platform as machine_platform
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import NotFoundError, UnreachableError
from windlass.pin.code.pinned import CodePin
from windlass.pin.code.reading import read_tree
from windlass.pin.image.catalogue import expand
from windlass.pin.image.context import read_context, read_dockerfile
from windlass.pin.image.dockerfile import parse_dockerfile
from windlass.pin.image.engine import ImageEngine, ImageFacts
from windlass.pin.image.naming import built_name, parse_reference
from windlass.pin.image.pinned import ImagePin
from windlass.pin.image.registry import fetch_digest

__all__ = ["ImageSource", "content_key", "host_platform", "is_image_file", "pin_built", "pin_named", "resolve_digests"]

_SCHEMA = 1
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64"}
_IMAGE_FILE = re.compile(r"(?:/|\w+://)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSource:
    """Image to build for an experiment file, with its variant applied."""

    dockerfile: str
    context: str = "."
    target: str = ""
    args: Mapping[str, str]
    variant: str = ""
    secrets: tuple[str, ...] = ()
    registry: str = ""


def pin_named(
    name: str,
    *,
    engine: ImageEngine | None,
    has_own_code: bool,
    network: str,
    platform: str = "",
    is_elsewhere: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> ImagePin:
    """Pin an existing image by its digest, from the engine or else from its registry.

    Args:
        name: a tag, a digest, a catalogue name, or (for a site with a container runtime) the path of an image file.
        engine: None to use only the registry.
        is_elsewhere: containers start on other machines than this engine's, so only registry digests are valid.
        log: called with a line before a registry request.

    Raises:
        WindlassError: neither has the image.
    """
    made = {"has_own_code": has_own_code, "network": network, "platform": platform or host_platform()}
    if is_image_file(name):
        return ImagePin(kind="named", name=name, **made)  # type: ignore[arg-type]
    full = expand(name)
    digest = resolve_digests([full], engine, is_elsewhere=is_elsewhere, log=log)[full]
    return ImagePin(kind="named", name=full.partition("@")[0], digest=digest, **made)  # type: ignore[arg-type]


def is_image_file(name: str) -> bool:
    """Return True if a name is a file, or an address that only a site's container runtime reads."""
    return _IMAGE_FILE.match(name) is not None and not name.startswith("docker://")


def pin_built(
    source: ImageSource,
    code: CodePin,
    folder: Path,
    *,
    engine: ImageEngine | None,
    has_own_code: bool,
    network: str,
    store: Path | None = None,
    platform: str = "",
    log: Callable[[str], None] = lambda line: None,
) -> ImagePin:
    """Pin an image by its inputs: Dockerfile, stage, arguments, pinned context, bases and platform.

    Reads the pinned tree, not the working folder. Takes a second or less: a few calls of git, and one of the engine for each base.

    Args:
        folder: the folder that was pinned.
        store: windlass's repository, for folders outside any repository.
        log: called with a line before a registry request.

    Raises:
        PreconditionError: no such Dockerfile, stage or context; the code is not pinned.
        WindlassError: a base does not exist.
    """
    platform = platform or host_platform()
    with read_tree(code, folder, store=store) as tree:
        text = read_dockerfile(tree, source.dockerfile)
        parsed = parse_dockerfile(
            text, path=source.dockerfile, args=source.args, target=source.target, platform=platform
        )
        context = read_context(tree, source.context, source.dockerfile)
    bases = resolve_digests(parsed.images(), engine, log=log)
    key = content_key(
        dockerfile_sha256=(dockerfile := hashlib.sha256(text.encode()).hexdigest()),
        target=source.target,
        args=source.args,
        context_sha256=context.sha256,
        bases=bases,
        platform=platform,
    )
    return ImagePin(
        kind="built",
        name=built_name(_project(code, folder), code.branch),
        key=key,
        dockerfile=source.dockerfile,
        dockerfile_sha256=dockerfile,
        context=source.context,
        context_sha256=context.sha256,
        target=source.target,
        args=dict(source.args),
        bases=bases,
        secrets=source.secrets,
        variant=source.variant or source.target,
        registry=source.registry,
        platform=platform,
        has_own_code=has_own_code,
        network=network,
    )


def content_key(
    *,
    dockerfile_sha256: str,
    target: str,
    args: Mapping[str, str],
    context_sha256: str,
    bases: Mapping[str, str],
    platform: str,
) -> str:
    """Return the hex sha256 of all inputs of an image; pure."""
    parts = {
        "schema": _SCHEMA,
        "dockerfile": dockerfile_sha256,
        "target": target,
        "args": dict(args),
        "context": context_sha256,
        "bases": dict(bases),
        "platform": platform,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def resolve_digests(
    names: Iterable[str],
    engine: ImageEngine | None,
    *,
    is_elsewhere: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, str]:
    """Return the digest of each image: the one in its name, or else the engine's, or else the registry's.

    An image that only the engine has (built or loaded there) is identified by its configuration's id, which is not
    valid on other machines (`is_elsewhere`).
    """
    found: dict[str, str] = {}
    for name in names:
        reference = parse_reference(name)
        facts = None if reference.digest else _of_engine(name, engine)
        known = facts.digest_of(reference.name) or ("" if is_elsewhere else facts.image_id) if facts is not None else ""
        found[name] = reference.digest or known or _of_registry(name, engine, is_here=facts is not None, log=log)
    return found


def _of_engine(name: str, engine: ImageEngine | None) -> ImageFacts | None:
    if engine is None:
        return None
    try:
        return engine.find(name)
    except UnreachableError:
        return None  # a plan needs no engine if the registry responds


def _of_registry(name: str, engine: ImageEngine | None, *, is_here: bool, log: Callable[[str], None]) -> str:
    reference = parse_reference(name)
    log(f"querying the registry {reference.registry} for the digest of `{name}`")
    try:
        return fetch_digest(reference)
    except (NotFoundError, UnreachableError) as error:
        how = "has it only on this machine" if is_here else "does not have it"
        here = f", and {engine.kind} {how}" if engine is not None else ""
        raise type(error)(f"{error.message}{here}", hint=error.hint, code=error.code) from error


def host_platform() -> str:
    """Return the platform of this machine's containers, such as `linux/amd64`."""
    machine = machine_platform.machine()
    return f"linux/{_ARCHITECTURES.get(machine, machine)}"


def _project(code: CodePin, folder: Path) -> str:
    last = code.remote.rstrip("/").rpartition("/")[2].rpartition(":")[2].removesuffix(".git")
    if last:
        return last
    parts = Path(folder).absolute().parts
    return parts[-1 - len([part for part in code.subdir.split("/") if part])]
