"""Recipe for the builder, made from an environment pin and a site's profile; pure."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import PurePosixPath

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.pin.environment.locked import LockedPackage, locked_packages
from windlass.pin.environment.pinned import EnvironmentPin
from windlass.pin.environment.project import normalize
from windlass.sites.profile import SiteEnvironment
from windlass.supervise.builds.recipe import (
    TORCH_BACKEND,
    EnvironmentRecipe,
    OverlayPackage,
    PackageOverride,
    StartupPatch,
)

__all__ = ["ProjectFiles", "make_recipe"]

_KEY_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectFiles:
    """Files of the project that a recipe needs, and their paths at the site.

    Attributes:
        lock: text of the pinned lock file.
        settings: settings that, besides the lock file, affect what is installed (`ProjectManifest.settings`).
        folder: the project's folder at the site.
        tree: id of the code's tree; names the overlay of packages that must be built.
    """

    lock: str
    settings: str
    folder: PurePosixPath
    tree: str = ""

    def packages(self, pin: EnvironmentPin) -> tuple[LockedPackage, ...]:
        """Return the packages in the lock file for all extras and platforms."""
        return locked_packages(self.lock, PurePosixPath(pin.lock_file).name)


def make_recipe(pin: EnvironmentPin, files: ProjectFiles, site: SiteEnvironment, arch: str) -> EnvironmentRecipe:
    """Return the recipe for a `uv` pin's environment on a machine with that architecture; pure.

    Overrides for packages that are not in the lock file are left out and do not change the key. `site.uv`,
    `module_init` and the project's folder are not part of the key: they do not affect what is installed.

    Raises:
        PreconditionError: `invalid-value`, or `lock-invalid`.
    """
    _check_indexes(site)
    names = {package.name for package in files.packages(pin)} | {each.partition("==")[0] for each in pin.unhashed}
    overrides = tuple(
        PackageOverride(
            package=each.package,
            index=each.index,
            when_import_fails=each.when_import_fails,
            is_source_build=each.source_build,
            build_vars=dict(each.build_vars),
            why=each.why,
            seen=each.seen,
        )
        for each in site.overrides
        if normalize(each.package.partition("==")[0].strip()) in names
    )
    patches = tuple(StartupPatch(each.name, each.code, each.why, each.seen) for each in site.patches)
    key = _digest(_identity(pin, files, site, arch, overrides, patches))
    overlay = _overlay(pin, files)
    return EnvironmentRecipe(
        key=key,
        project=str(files.folder),
        lock_file=pin.lock_file,
        lock_sha256=pin.lock_sha256,
        python_version=pin.python_version,
        arch=arch,
        uv=site.uv,
        extras=pin.extras,
        groups=pin.groups,
        unhashed=pin.unhashed,
        not_installed=tuple(package.name for package in pin.local_packages),
        module_init=site.module_init,
        module_purge=site.module_purge,
        modules=site.modules,
        modules_forbidden=site.modules_forbidden,
        overrides=overrides,
        patches=patches,
        imports=site.imports,
        overlay_key=_digest({"environment": key, "tree": files.tree}) if overlay else "",
        overlay_stamp=files.tree,
        overlay=overlay,
        is_staged=site.stage == "node-local",
        is_offline=site.is_offline and site.build == "compute",
    )


def _check_indexes(site: SiteEnvironment) -> None:
    for each in site.overrides:
        if "@" in each.index.partition("://")[2].partition("/")[0]:
            raise PreconditionError(
                f"the override of `{each.package}` has a user name or password in its index",
                hint="remove it and write it to ~/.netrc at the site, which uv reads",
                code="invalid-value",
            )
        if each.index and not (
            "://" in each.index or each.index.startswith("/") or TORCH_BACKEND.fullmatch(each.index)
        ):
            raise PreconditionError(
                f"the override of `{each.package}` has the index `{each.index}`, which is not a package index",
                hint="write a URL, the absolute path of a folder of wheels, or a PyTorch index such as `cu126`",
                code="invalid-value",
            )


def _identity(
    pin: EnvironmentPin,
    files: ProjectFiles,
    site: SiteEnvironment,
    arch: str,
    overrides: tuple[PackageOverride, ...],
    patches: tuple[StartupPatch, ...],
) -> Mapping[str, object]:
    """Return the values that distinguish environments, without reasons and dates."""
    return {
        "format": _KEY_FORMAT,
        "lock": pin.lock_sha256,
        "settings": files.settings,
        "extras": pin.extras,
        "groups": pin.groups,
        "unhashed": pin.unhashed,
        "python": pin.python_version,
        "arch": arch,
        "modules": [site.module_purge, *site.modules],
        "overrides": [
            [each.package, each.index, each.when_import_fails, each.is_source_build, dict(each.build_vars)]
            for each in overrides
        ],
        "patches": [[each.name, each.code] for each in patches],
        "imports": site.imports,
    }


def _overlay(pin: EnvironmentPin, files: ProjectFiles) -> tuple[OverlayPackage, ...]:
    return tuple(
        OverlayPackage(package.name, os.path.normpath(files.folder / package.path))
        for package in pin.local_packages
        if package.must_be_installed
    )


def _digest(identity: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
