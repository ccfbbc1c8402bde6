"""Environment pin: the packages and the Python that a run uses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from windlass.core.dataclass import dataclass
from windlass.core.phrases import count

__all__ = ["NO_ENVIRONMENT", "BuiltEnvironment", "EnvironmentKind", "EnvironmentPin", "LocalPackage", "path_entries"]

EnvironmentKind = Literal["uv", "python", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPackage:
    """Package whose source is in the run's checkout: the project, a workspace member, a path dependency.

    Attributes:
        path: relative to the code folder; `.` is the project itself.
        must_be_installed: whether it cannot be imported directly from its folder.
    """

    name: str
    path: str
    must_be_installed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentPin:
    """Immutable reference to an environment.

    Attributes:
        lock_file: path of the lock file relative to the project folder; empty except for `uv`.
        manifest_sha256: of pyproject.toml; empty if there is none.
        python_version: full version of the interpreter, `3.11.7`.
        interpreter: its path on this machine; not part of the key.
        platform: operating system, processor and C library, `linux-x86_64-glibc2.36`.
        unhashed: packages pinned by version outside the lock file, `torch==2.13.0`.
        key: names the cached virtual environment; equal keys mean equal environments.
        packages: `name==version` of each package of a `python` environment; a `uv` one has its lock file.
        local_packages: packages used from the checkout, which are never in the cached environment.
    """

    kind: EnvironmentKind
    lock_file: str = ""
    lock_sha256: str = ""
    manifest_sha256: str = ""
    python_version: str = ""
    interpreter: str = ""
    platform: str = ""
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    unhashed: tuple[str, ...] = ()
    key: str = ""
    packages: tuple[str, ...] = ()
    local_packages: tuple[LocalPackage, ...] = ()

    def text(self) -> str:
        """Describe the environment in one line."""
        if self.kind == "none":
            return "none: the programs of the place"
        if self.kind == "python":
            return (
                f"python {self.python_version} at {self.interpreter}, as it is, {count(len(self.packages), 'package')}"
            )
        chosen = [f"group {name}" for name in self.groups] + [f"extra {name}" for name in self.extras]
        parts = [f"uv {self.lock_file} sha256:{self.lock_sha256[:12]}", f"python {self.python_version}", *chosen]
        return ", ".join([*parts, *(f"{name} from outside the lock" for name in self.unhashed)])

    @property
    def has_build_step(self) -> bool:
        """Return True if packages in the checkout must be built and installed, once per tree."""
        return any(package.must_be_installed for package in self.local_packages)


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltEnvironment:
    """Environment that exists on this machine.

    Attributes:
        bin: folder of its programs.
        bins: folders to prepend to PATH; empty for kind `none`.
        path_entries: folders to prepend to PYTHONPATH, in this order.
        is_hit: whether nothing had to be built.
    """

    python: Path
    bin: Path
    bins: tuple[Path, ...]
    path_entries: tuple[Path, ...]
    packages: tuple[str, ...]
    is_hit: bool


NO_ENVIRONMENT = EnvironmentPin(kind="none")


def path_entries(pin: EnvironmentPin, code_folder: Path) -> tuple[Path, ...]:
    """Return the `src` and root folders of the code, then those of each other local package, without duplicates."""
    found: list[Path] = []
    for path in (".", *(package.path for package in pin.local_packages)):
        folder = Path(os.path.normpath(code_folder / path))
        for entry in (folder / "src", folder):
            if entry not in found and entry.is_dir():
                found.append(entry)
    return tuple(found)
