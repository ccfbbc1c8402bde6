"""Container image for the tasks: named, or built from a Dockerfile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import PurePosixPath
from typing import Annotated, Literal

from windlass.config.annotations import Diagnostic, Doc, Name, OneOrMany
from windlass.core.dataclass import dataclass
from windlass.core.names import nearest
from windlass.spec.variables import Variables

__all__ = ["Image", "ImageVariant"]

_DOCKERFILE = re.compile(r"(?:Dockerfile|Containerfile)(?:\..+)?\Z|.+\.(?:Dockerfile|dockerfile)\Z")

_SECRET_NAME = re.compile(r"(?:\A|_)(?:TOKEN|PASSWORD|PASSWD|SECRET|API_?KEY)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageVariant:
    """Variant of an image from one Dockerfile, such as for another CUDA version."""

    target: Annotated[str, Doc("Stage to build, instead of the image's own `target`.")] = ""
    args: Annotated[Variables, Doc("Build arguments, on top of the image's own.")] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Container image: the `name` of an existing one, or a `dockerfile` at the pinned commit."""

    name: Annotated[str, Doc("Tag or digest of an image that exists, such as `python:3.12`.")] = ""
    dockerfile: Annotated[str, Doc("Dockerfile to build, relative to the code.")] = ""
    context: Annotated[str, Doc("Build context: a folder below the code.")] = "."
    target: Annotated[str, Doc("Stage of the Dockerfile to build.")] = ""
    args: Annotated[Variables, Doc("Build arguments.")] = field(default_factory=dict)
    variants: Annotated[
        Mapping[Annotated[str, Name(is_dotted=False)], ImageVariant], Doc("Images that differ in stage or arguments.")
    ] = field(default_factory=dict)
    variant: Annotated[str, Doc("Variant of `variants` that the tasks run in.")] = ""
    secrets: Annotated[
        tuple[str, ...], OneOrMany(), Doc("Secrets from the vault that `RUN --mount=type=secret,id=NAME` may read.")
    ] = ()
    registry: Annotated[str, Doc("Registry for pushing and caching a built image, such as `ghcr.io/lab/project`.")] = ""
    code: Annotated[
        Literal["", "image", "mounted"],
        Doc("The image's own code, or mounted code; default: `image` for a Dockerfile, else `mounted`."),
    ] = ""
    network: Annotated[
        Literal["host", "private"], Doc("Network of the containers: the machine's, or a separate one for each task.")
    ] = "host"

    @classmethod
    def from_shorthand(cls, value: str) -> Image:
        """Read the short forms `Dockerfile` (or a path to one) and `python:3.12`."""
        is_path = _DOCKERFILE.match(PurePosixPath(value).name) and "@" not in value and ":" not in value
        return cls(dockerfile=value) if is_path else cls(name=value)

    def to_shorthand(self) -> str | None:
        """Return the short form, or None if there is none."""
        for short in (self.name, self.dockerfile):
            if short and type(self).from_shorthand(short) == self:
                return short
        return None

    def __bool__(self) -> bool:
        """Return whether an image is set."""
        return bool(self.name or self.dockerfile)

    def __str__(self) -> str:
        """Return the image's name, or the path of its Dockerfile."""
        return self.name or self.dockerfile

    @property
    def has_own_code(self) -> bool:
        """Return whether the tasks run the code in the image, in its working folder."""
        return self.code == "image" or (not self.code and bool(self.dockerfile))

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        if self.name and self.dockerfile:
            hint = "keep `name` (an image that exists) or `dockerfile` (one to build)"
            yield "name", "the image has both `name` and `dockerfile`", "conflicting-options", hint
        if not self.dockerfile:
            for key in ("target", "args", "variants", "variant", "secrets", "registry"):
                if getattr(self, key):
                    message = f"env.image.{key} has no effect without `dockerfile`"
                    yield key, message, "setting-unused", f"add `dockerfile: Dockerfile`, or remove `{key}`"
        if self.variant and self.variant not in self.variants and self.dockerfile:
            close = nearest(self.variant, self.variants)
            known = f"the variants are: {', '.join(self.variants)}" if self.variants else "add it to `variants`"
            hint = f"did you mean `{close}`?" if close else known
            yield "variant", f"unknown variant `{self.variant}`", "unknown-name", hint
        given = (("args", self.args), *((f"variants.{name}.args", each.args) for name, each in self.variants.items()))
        for where, args in given:
            for name in args:
                if _SECRET_NAME.search(name):
                    message = f"the build argument `{name}` looks like a secret, and arguments stay in the image"
                    hint = f"windlass secret set {name}; `secrets: {name}`; RUN --mount=type=secret,id={name} in the Dockerfile"
                    yield f"{where}.{name}", message, "image-secret-argument", hint
        for key in ("dockerfile", "context"):
            value = getattr(self, key)
            if value.startswith("/") or ".." in PurePosixPath(value).parts:
                hint = "write a path below the code folder, because only that folder is pinned"
                yield key, f"`{value}` is outside the code", "invalid-value", hint
