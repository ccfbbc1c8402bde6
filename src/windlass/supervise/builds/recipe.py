"""recipe.json: the description of an environment, written by the client for the builder at a site."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.json_text import decode_json

__all__ = [
    "AIMING_VARIABLES",
    "TORCH_BACKEND",
    "EnvironmentRecipe",
    "OverlayPackage",
    "PackageOverride",
    "StartupPatch",
]

_SCHEMA = 1

TORCH_BACKEND = re.compile(r"cu\d{2,3}|rocm\d\.\d|cpu|xpu")
"""uv's names for PyTorch's package indexes."""

# They would point uv at another project or interpreter.
AIMING_VARIABLES = frozenset(
    [
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "PYTHONPATH",
        "PYTHONHOME",
        "UV_PROJECT_ENVIRONMENT",
        "UV_PROJECT",
        "UV_NO_PROJECT",
        "UV_WORKING_DIR",
        "UV_WORKING_DIRECTORY",
        "UV_FROZEN",
        "UV_LOCKED",
        "UV_NO_SYNC",
        "UV_ISOLATED",
        "UV_SYSTEM_PYTHON",
        "UV_BREAK_SYSTEM_PACKAGES",
        "UV_VENV_CLEAR",
        "UV_VENV_SEED",
        "UV_ENV_FILE",
    ]
)


@dataclass(frozen=True)
class PackageOverride:
    """Package to install from another build than the one in the lock file.

    Attributes:
        package: name, or `name==version`; without a version, the locked version is kept.
        index: address of a package index, a folder of wheels, or a PyTorch index (`cu126`); empty means uv's default.
        when_import_fails: the override applies only if importing this module fails; empty means always.
        is_source_build: compile it, with `build_vars` in the environment.
    """

    package: str
    index: str = ""
    when_import_fails: str = ""
    is_source_build: bool = False
    build_vars: Mapping[str, str] = field(default_factory=dict)
    why: str = ""
    seen: str = ""

    @property
    def name(self) -> str:
        """Return the name of the package without its version."""
        return self.package.partition("==")[0].strip()


@dataclass(frozen=True)
class StartupPatch:
    """Python code that runs when an interpreter of the environment starts."""

    name: str
    code: str
    why: str = ""
    seen: str = ""

    @property
    def module(self) -> str:
        """Return the name of the module that contains the patch."""
        return "windlass_patch_" + "".join(each if each.isalnum() else "_" for each in self.name)


@dataclass(frozen=True)
class OverlayPackage:
    """Package in the checkout that is built and installed into an overlay beside the environment."""

    name: str
    folder: str


@dataclass(frozen=True)
class EnvironmentRecipe:
    """Content of an environment, and the project's location at the site; paths are absolute and not part of `key`.

    Attributes:
        key: name of the environment's folder; equal keys mean equal environments.
        project: the project's folder in a checkout; uv runs there.
        lock_file: relative to `project`.
        not_installed: packages of the checkout that are not installed in the shared environment.
        unhashed: packages pinned by version outside the lock file.
        imports: modules that must be importable, if they are installed.
        overlay_key: name of the overlay's folder; empty if no package in the checkout must be built.
        overlay_stamp: id of the code's tree, for builds that take their version from git.
        is_staged: whether an archive for node-local disks is created too.
        is_offline: whether the build must not download anything.
    """

    key: str
    project: str
    lock_file: str
    lock_sha256: str
    python_version: str
    arch: str
    uv: str = "uv"
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    unhashed: tuple[str, ...] = ()
    not_installed: tuple[str, ...] = ()
    module_init: str = ""
    module_purge: bool = False
    modules: tuple[str, ...] = ()
    modules_forbidden: tuple[str, ...] = ()
    overrides: tuple[PackageOverride, ...] = ()
    patches: tuple[StartupPatch, ...] = ()
    imports: tuple[str, ...] = ()
    overlay_key: str = ""
    overlay_stamp: str = ""
    overlay: tuple[OverlayPackage, ...] = ()
    is_staged: bool = False
    is_offline: bool = False
    schema: int = _SCHEMA

    def to_json(self) -> bytes:
        """Return the JSON form."""
        return json.dumps(asdict(self), indent=1, sort_keys=True).encode() + b"\n"

    @classmethod
    def from_json(cls, content: bytes, source: str) -> EnvironmentRecipe:
        """Decode `to_json`; `source` names it in messages.

        Raises:
            PreconditionError: it is damaged, or of another version.
        """
        try:
            data: dict[str, Any] = decode_json(content)
            if data["schema"] != _SCHEMA:
                raise PreconditionError(
                    f"{source} has schema {data['schema']}, but this builder reads {_SCHEMA}",
                    hint="launch again",
                    code="plan-broken",
                )
            data["overrides"] = tuple(PackageOverride(**each) for each in data["overrides"])
            data["patches"] = tuple(StartupPatch(**each) for each in data["patches"])
            data["overlay"] = tuple(OverlayPackage(**each) for each in data["overlay"])
            lists = ("extras", "groups", "unhashed", "not_installed", "modules", "modules_forbidden", "imports")
            data.update({name: tuple(data[name]) for name in lists})
            return cls(**data)
        except (ValueError, KeyError, TypeError) as error:
            raise PreconditionError(
                f"{source} is not a valid recipe: {error}", hint="launch again", code="plan-broken"
            ) from error

    def facts(self) -> dict[str, object]:
        """Return the recipe's facts for the provenance: everything except locations."""
        data = asdict(self)
        for name in ("project", "schema", "overlay", "is_staged", "uv", "module_init"):
            del data[name]
        return data
