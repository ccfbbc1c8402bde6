"""Pins of a plan, and the part of them that identifies the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from windlass.core.dataclass import dataclass
from windlass.pin.code.pinned import NO_CODE, CodePin
from windlass.pin.data.pinned import BuildPin, DataPin
from windlass.pin.environment.pinned import NO_ENVIRONMENT, EnvironmentPin
from windlass.pin.image.pinned import NO_IMAGE, ImagePin

__all__ = ["BUILDS", "Pins", "built_name"]

BUILDS = "data."
"""Prefix of tasks that build prepared data; names of the user's tasks contain no dot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Immutable references to the code, environment, image, data and prepared data (`builds`)."""

    code: CodePin = NO_CODE
    environment: EnvironmentPin = NO_ENVIRONMENT
    data: Mapping[str, DataPin] = field(default_factory=dict)
    image: ImagePin = NO_IMAGE
    builds: Mapping[str, BuildPin] = field(default_factory=dict)

    def identity(self) -> dict[str, object]:
        """Return the part of the pins that does not depend on the machine, without paths and platform."""
        return {
            "code": _code_identity(self.code),
            "environment": _environment_identity(self.environment),
            "data": {name: pin.digest for name, pin in self.data.items()},
            **({"builds": {name: pin.key for name, pin in self.builds.items()}} if self.builds else {}),
            **({"image": self.image.identity()} if self.image.kind != "none" else {}),
        }


def built_name(task: str) -> str:
    """Return the name of the data that a task builds; empty for a user's task."""
    return task.removeprefix(BUILDS) if task.startswith(BUILDS) else ""


def _code_identity(pin: CodePin) -> dict[str, object]:
    if pin.kind == "none":
        return {"kind": "none"}
    if pin.kind == "in-place":
        return {"kind": "in-place", "commit": pin.commit, "subdir": pin.subdir, "dirty": list(pin.dirty_files)}
    return {"kind": "tree", "tree": pin.tree or pin.commit, "subdir": pin.subdir}


def _environment_identity(pin: EnvironmentPin) -> dict[str, object]:
    if pin.kind == "none":
        return {"kind": "none"}
    return {
        "kind": pin.kind,
        "lock": pin.lock_sha256,
        "manifest": pin.manifest_sha256,
        "python": ".".join(pin.python_version.split(".")[:2]),
        "extras": sorted(pin.extras),
        "groups": sorted(pin.groups),
        "unhashed": sorted(pin.unhashed),
        "packages": sorted(pin.packages),
    }
