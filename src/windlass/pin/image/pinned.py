"""Pins of images before a launch, and images that exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from windlass.core.dataclass import dataclass

__all__ = ["NO_IMAGE", "BuiltImage", "ImagePin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePin:
    """Immutable reference to an image: by digest if it exists, by the key of its content if it is built.

    Attributes:
        name: the name that the user wrote, or the built image's name (without a tag).
        digest: of a named image, `sha256:...` at its registry (or, without one, in its engine).
        key: of a built image: hex sha256 of Dockerfile, stage, arguments, context and bases.
        context: folder of the builder's context, relative to the code.
        variant: the variant of the Dockerfile's image; empty if there is only one.
        bases: digest of each base image of the Dockerfile, by the name it uses.
        platform: `linux/amd64`, ...
        has_own_code: whether the code that runs is in the image, at its working folder.
        network: `host` or `private`.
    """

    kind: Literal["none", "named", "built"] = "none"
    name: str = ""
    digest: str = ""
    key: str = ""
    dockerfile: str = ""
    dockerfile_sha256: str = ""
    context: str = "."
    context_sha256: str = ""
    target: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    bases: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    variant: str = ""
    registry: str = ""
    platform: str = ""
    has_own_code: bool = False
    network: str = "host"

    def text(self) -> str:
        """Describe the image in one line: by its digest or its content."""
        if self.kind == "built":
            source = self.dockerfile + (f" ({self.variant})" if self.variant else "")
            return f"{self.name}, from {source} by content {self.key[:12]}, for {self.platform}"
        if self.digest:
            return f"{self.name}@{self.digest}"
        how = (
            "a file of the site: its content is not pinned"
            if self.name.startswith("/")
            else "by its tag: its digest is not known here"
        )
        return f"{self.name} ({how})"

    def identity(self) -> dict[str, object]:
        """Return the values that identify the image, equal at every site."""
        return {"kind": self.kind, "content": self.key or self.digest, "platform": self.platform}


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """Image that exists on this machine.

    Attributes:
        reference: name to start containers from: `name@sha256:...`, or the engine's `sha256:...`.
        image_id: the engine's id of its content, `sha256:...`.
        digest: of its manifest in a registry; empty if it is in none.
        workdir: its working folder.
        packages: installed packages, `name==version` and `deb:name=version`.
        sbom: path of its bill of materials; empty if there is none.
        is_hit: whether nothing had to be built or pulled.
    """

    reference: str
    image_id: str
    digest: str = ""
    workdir: str = "/"
    packages: tuple[str, ...] = ()
    sbom: str = ""
    is_hit: bool = True

    def provenance(self) -> dict[str, object]:
        """Return the part of a run's provenance that describes the image, in addition to the pin."""
        return {
            "reference": self.reference,
            "image_id": self.image_id,
            "registry_digest": self.digest,
            "workdir": self.workdir,
            "packages": list(self.packages),
            "sbom": self.sbom,
        }


NO_IMAGE = ImagePin()
