"""Content of a lock file: names, versions and architectures; enough to check it, not to install from it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from windlass.config.foreign_text import load_toml
from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.pin.environment.project import normalize

__all__ = ["LockedPackage", "locked_packages", "wants_architecture"]

_REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)\s*(?:;([^\\#]*))?", re.MULTILINE)
_MACHINE = re.compile(r"platform_machine\s*(==|!=)\s*['\"]([^'\"]+)['\"]")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPackage:
    """Package in a lock file.

    Attributes:
        marker: condition for installing it, if the lock file states one with the package.
        requires: names of its dependencies, each with its marker.
    """

    name: str
    version: str
    marker: str = ""
    requires: tuple[tuple[str, str], ...] = ()


def locked_packages(text: str, file_name: str) -> tuple[LockedPackage, ...]:
    """Return the packages in a uv.lock, pylock.toml or requirements.txt for all extras and platforms; pure.

    Raises:
        PreconditionError: `lock-invalid`.
    """
    if file_name.endswith(".txt"):
        return tuple(
            LockedPackage(name=normalize(name), version=version, marker=marker.strip())
            for name, version, marker in _REQUIREMENT.findall(text)
        )
    try:
        tables = load_toml(text)
    except ValueError as error:
        raise PreconditionError(
            f"{file_name} is not valid TOML: {error}", hint="uv lock", code="lock-invalid"
        ) from error
    return tuple(_read(each) for each in _tables(tables.get("package", tables.get("packages"))))


def _read(package: dict[str, object]) -> LockedPackage:
    return LockedPackage(
        name=normalize(str(package.get("name", ""))),
        version=str(package.get("version", "")),
        marker=str(package.get("marker", "")),
        requires=tuple(
            (normalize(str(each.get("name", ""))), str(each.get("marker", "")))
            for each in _tables(package.get("dependencies"))
        ),
    )


def _tables(value: object) -> Iterable[dict[str, object]]:
    return (
        [cast("dict[str, object]", each) for each in value if isinstance(each, dict)] if isinstance(value, list) else []
    )


def wants_architecture(marker: str, arch: str) -> bool:
    """Return True if a marker can hold on Linux with this architecture; other conditions are assumed to hold."""
    if "sys_platform == 'win32'" in marker and " or " not in marker:
        return False
    told = _MACHINE.findall(marker)
    named = {machine for sign, machine in told if sign == "=="}
    barred = {machine for sign, machine in told if sign == "!="}
    return arch not in barred and (not named or arch in named)
