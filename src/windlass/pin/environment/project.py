"""Files of a Python project: its manifest, its local packages, and which of them must be built."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from windlass.config.foreign_text import load_toml
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.names import nearest
from windlass.pin.environment.pinned import LocalPackage

__all__ = ["ProjectManifest", "check_choices", "describe_package", "normalize", "read_manifest", "read_toml"]

_COMPILING_BACKENDS = (
    "maturin",
    "scikit_build_core",
    "mesonpy",
    "setuptools_rust",
    "skbuild",
    "pymsbuild",
    "py_build_cmake",
    "sipbuild",
)
_COMPILING_FILES = ("CMakeLists.txt", "meson.build", "Cargo.toml", "build.rs", "binding.gyp")
_COMPILING_WORDS = re.compile(
    r"ext_modules|Extension\(|cythonize|cffi_modules|pybind11|CUDAExtension|CppExtension|rust_extensions"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectManifest:
    """Parsed pyproject.toml."""

    path: Path
    tables: dict[str, object]

    def table(self, *names: str) -> dict[str, object]:
        """Return a nested table; empty if it is missing or not a table."""
        value: object = self.tables
        for name in names:
            value = value.get(name, {}) if isinstance(value, dict) else {}
        return cast("dict[str, object]", value) if isinstance(value, dict) else {}

    @property
    def name(self) -> str:
        return str(self.table("project").get("name", self.path.parent.name))

    @property
    def is_package(self) -> bool:
        """Return True if uv would install the project itself; source: uv, "Build systems", tool.uv.package."""
        told = self.table("tool", "uv").get("package")
        return told if isinstance(told, bool) else "build-system" in self.tables

    @property
    def settings(self) -> str:
        """Return the settings that affect what is installed in addition to the lock file, as canonical text."""
        chosen = {"requires-python": self.table("project").get("requires-python"), "uv": self.table("tool", "uv")}
        return json.dumps(chosen, sort_keys=True, default=str)


def normalize(name: str) -> str:
    """Return a package name in normalized form; source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_toml(path: Path, *, code: str, hint: str) -> dict[str, object]:
    """Read a TOML file; an error names its position."""
    try:
        return load_toml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PreconditionError(f"{path} is not valid TOML: {error}", hint=hint, code=code) from error


def read_manifest(folder: Path) -> ProjectManifest | None:
    """Return the project's pyproject.toml, or None if the folder has none."""
    path = folder / "pyproject.toml"
    if not path.is_file():
        return None
    return ProjectManifest(path=path, tables=read_toml(path, code="invalid-file", hint="correct that line"))


def check_choices(manifest: ProjectManifest, extras: Iterable[str], groups: Iterable[str]) -> None:
    """Raise if the project does not declare one of the extras or dependency groups."""
    declared = {
        "extra": manifest.table("project", "optional-dependencies"),
        "group": manifest.table("dependency-groups"),
    }
    for kind, chosen in (("extra", extras), ("group", groups)):
        known = {normalize(name): name for name in declared[kind]}
        for name in chosen:
            if normalize(name) not in known:
                close = nearest(name, known.values())
                legal = ", ".join(sorted(known.values())) or "none"
                raise PreconditionError(
                    f"{manifest.path} has no {kind} `{name}`",
                    hint=f"did you mean `{close}`?" if close else f"available: {legal}",
                    code="unknown-extra",
                )


def describe_package(folder: Path, base: Path) -> LocalPackage | None:
    """Describe how a run uses a local package; return None for a project that is not a package."""
    manifest = read_manifest(folder)
    if manifest is None:
        must_be_installed, name = (folder / "setup.py").is_file(), folder.name
        if not must_be_installed and folder == base:
            return None
    else:
        must_be_installed, name = manifest.is_package and _must_be_installed(manifest, folder), manifest.name
        if not manifest.is_package and folder == base:
            return None
    return LocalPackage(name=normalize(name), path=os.path.relpath(folder, base), must_be_installed=must_be_installed)


def _must_be_installed(manifest: ProjectManifest, folder: Path) -> bool:
    project = manifest.table("project")
    if any(manifest.table("project", each) for each in ("scripts", "gui-scripts", "entry-points")):
        return True
    return (
        _compiles(manifest, folder)
        or _generates_files(manifest)
        or not _is_importable(str(project.get("name", "")), folder)
    )


def _compiles(manifest: ProjectManifest, folder: Path) -> bool:
    backend = str(manifest.table("build-system").get("build-backend", ""))
    if backend.startswith(_COMPILING_BACKENDS) or any((folder / name).exists() for name in _COMPILING_FILES):
        return True
    if manifest.table("tool", "setuptools").get("ext-modules"):
        return True
    setup = folder / "setup.py"
    return setup.is_file() and _COMPILING_WORDS.search(setup.read_text(encoding="utf-8", errors="replace")) is not None


def _generates_files(manifest: ProjectManifest) -> bool:
    """Return True if a build writes files that the source lacks, such as `_version.py`."""
    scm = manifest.table("tool", "setuptools_scm")
    return bool(scm.get("version_file") or scm.get("write_to") or manifest.table("tool", "hatch", "build", "hooks"))


def _is_importable(name: str, folder: Path) -> bool:
    """Return True if the package can be imported with the folder or its `src` on the path."""
    module = normalize(name).replace("-", "_")
    for root in (folder / "src", folder):
        entries = {entry.name.lower(): entry for entry in os.scandir(root)} if root.is_dir() else {}
        found = entries.get(module)
        if f"{module}.py" in entries or (found is not None and found.is_dir() and any(Path(found.path).glob("*.py"))):
            return True
    return False
