"""Names of images: their parts, and the names that windlass gives to images it builds; pure.

Source: distribution/reference, "Grammar"; a name without a registry is Docker Hub's.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError

__all__ = [
    "CACHE_PREFIX",
    "KEY_PREFIX",
    "Reference",
    "built_name",
    "commit_tag",
    "key_tag",
    "parse_reference",
    "sanitised",
]

KEY_PREFIX = "k-"
"""Prefix of the tag that identifies an image's content."""
CACHE_PREFIX = "cache-"
"""Prefix of the tag that moves with each build and only provides cached layers."""
_HUB = "docker.io"
_PART = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_PART = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Parsed image name.

    Attributes:
        registry: host and port; `docker.io` by default.
        repository: path in the registry, `library/python`.
    """

    registry: str
    repository: str
    tag: str = ""
    digest: str = ""

    @property
    def name(self) -> str:
        """Return the name without tag and digest, as engines show it."""
        if self.registry != _HUB:
            return f"{self.registry}/{self.repository}"
        return self.repository.removeprefix("library/")

    @property
    def full_name(self) -> str:
        """Return the name, always with its registry."""
        return f"{self.registry}/{self.repository}"

    def with_tag(self, tag: str) -> Reference:
        """Return the name with a tag and no digest."""
        return replace(self, tag=tag, digest="")

    def at(self, digest: str) -> str:
        """Return the name with a digest."""
        return f"{self.name}@{digest}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}" + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> Reference:
    """Parse an image's name; `python` is `docker.io/library/python:latest`.

    Raises:
        PreconditionError: the name is invalid.
    """
    rest, _, digest = text.removeprefix("docker://").partition("@")
    head, slash, tail = rest.rpartition("/")
    last, colon, tag = tail.partition(":")
    path = head + slash + last
    first, _, below = path.partition("/")
    is_host = below and ("." in first or ":" in first or first == "localhost")
    registry, repository = (first, below) if is_host else (_HUB, path)
    if registry == _HUB and "/" not in repository:
        repository = f"library/{repository}"
    is_good = all(_PART.fullmatch(part) for part in repository.split("/")) and (not colon or _TAG.fullmatch(tag))
    if not is_good or (digest and not _DIGEST.fullmatch(digest)):
        raise PreconditionError(
            f"`{text}` is not a valid image name",
            hint="write [REGISTRY/]NAME[:TAG] or NAME@sha256:DIGEST, in lower case",
            code="invalid-name",
        )
    return Reference(registry=registry, repository=repository, tag=tag or ("" if digest else "latest"), digest=digest)


def built_name(project: str, branch: str) -> str:
    """Return the local name for the image of a project's branch: `windlass/<project>-<branch>`."""
    return f"windlass/{sanitised(project)}-{sanitised(branch or 'detached')}"


def sanitised(text: str) -> str:
    """Convert text to a valid part of an image name.

    If that changes it, digits of its digest are added to keep it unique.
    """
    clean = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_MAX_PART].strip("-")
    if clean and clean == text:
        return clean
    mark = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:6]
    return f"{clean}-{mark}" if clean else f"x-{mark}"


def commit_tag(commit: str) -> str:
    """Return the tag for a commit or a snapshot."""
    return commit[:12]


def key_tag(key: str) -> str:
    """Return the tag for a content key."""
    return KEY_PREFIX + key[:24]
