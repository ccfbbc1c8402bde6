"""Pinning of an environment, given by a project folder or an interpreter."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from windlass.core.errors import NotFoundError, PreconditionError
from windlass.core.files import sha256_file
from windlass.pin.code.git import last_lines
from windlass.pin.environment.interpreter import Interpreter, ask_interpreter, find_interpreter
from windlass.pin.environment.lockfiles import LockFile, check_is_current, find_lock_file
from windlass.pin.environment.pinned import NO_ENVIRONMENT, EnvironmentKind, EnvironmentPin, LocalPackage
from windlass.pin.environment.project import check_choices, describe_package, read_manifest
from windlass.pin.environment.uv_tool import content_variables, run_uv

__all__ = ["pin_environment"]

_KEY_FORMAT = 1
_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,._-]+\])?==[A-Za-z0-9.+!_-]+\Z")


def pin_environment(
    kind: EnvironmentKind,
    folder: Path,
    *,
    extras: Sequence[str] = (),
    groups: Sequence[str] = (),
    python: str = "",
    unhashed: Sequence[str] = (),
) -> EnvironmentPin:
    """Pin an environment; runs uv or the interpreter, and needs no network if the lock file is up to date.

    Args:
        folder: for `uv` the project's folder; for `python` the base of a relative `python`.
        extras, groups: in addition to the default groups (tool.uv.default-groups).
        python: for `uv` the version (`3.12`), empty for the project's; for `python` the interpreter or
            virtual environment.
        unhashed: packages pinned by version (`torch==2.13.0`) installed after the lock file's, for a package
            whose wheel differs between sites; they are part of the key.

    Raises:
        PreconditionError: lock file missing, broken, stale or unhashed; no such extra, group or Python.
    """
    if kind == "none":
        return NO_ENVIRONMENT
    if kind == "python":
        return _pin_interpreter(folder, python)
    if not folder.is_dir():
        raise NotFoundError(
            f"no such folder: {folder}",
            hint="`env.uv` names the folder of a pyproject.toml",
            code="file-not-found",
        )
    folder = folder.absolute()
    _check_unhashed(unhashed)
    lock = find_lock_file(folder)
    _check_choices(lock, extras, groups)
    interpreter = ask_interpreter(Path(_find_python(folder, python)))
    check_is_current(lock, interpreter.path)
    return _make_pin(
        lock, interpreter, tuple(sorted(set(extras))), tuple(sorted(set(groups))), tuple(sorted(set(unhashed)))
    )


def _make_pin(
    lock: LockFile,
    interpreter: Interpreter,
    extras: tuple[str, ...],
    groups: tuple[str, ...],
    unhashed: tuple[str, ...],
) -> EnvironmentPin:
    manifest = read_manifest(lock.folder)
    identity: dict[str, object] = {
        "format": _KEY_FORMAT,
        "kind": lock.kind,
        "lock": lock.sha256,
        "settings": manifest.settings if manifest is not None else "",
        "variables": content_variables(),
        "extras": extras,
        "groups": groups,
        "unhashed": unhashed,
        "python": [interpreter.version, interpreter.tag],
        "platform": interpreter.platform,
    }
    return EnvironmentPin(
        kind="uv",
        lock_file=os.path.relpath(lock.path, lock.folder),
        lock_sha256=lock.sha256,
        manifest_sha256=sha256_file(manifest.path) if manifest is not None else "",
        python_version=interpreter.version,
        interpreter=interpreter.path,
        platform=interpreter.platform,
        extras=extras,
        groups=groups,
        unhashed=unhashed,
        key=_digest(identity),
        local_packages=_local_packages(lock, extras, groups),
    )


def _pin_interpreter(folder: Path, python: str) -> EnvironmentPin:
    if not python:
        raise PreconditionError(
            "`python:` needs the path of an interpreter", hint="python: /path/to/venv", code="python-unusable"
        )
    place = folder / Path(python).expanduser()
    return pin_of_interpreter(
        ask_interpreter(find_interpreter(Path(os.path.normpath(place.absolute()))), with_packages=True)
    )


def pin_of_interpreter(found: Interpreter) -> EnvironmentPin:
    """Return the pin for an interpreter that is used unchanged, on this machine or at a site."""
    frozen = "\n".join(found.packages)
    identity: dict[str, object] = {
        "format": _KEY_FORMAT,
        "python": [found.version, found.tag],
        "platform": found.platform,
        "packages": found.packages,
    }
    return EnvironmentPin(
        kind="python",
        lock_sha256=hashlib.sha256(frozen.encode()).hexdigest(),
        python_version=found.version,
        interpreter=found.path,
        platform=found.platform,
        key=_digest(identity),
        packages=found.packages,
    )


def _digest(identity: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def _check_unhashed(unhashed: Sequence[str]) -> None:
    loose = [each for each in unhashed if _PINNED.match(each) is None]
    if loose:
        raise PreconditionError(
            f"`{loose[0]}` is not pinned to one version",
            hint="write name==version, such as torch==2.13.0",
            code="unpinned-package",
        )


def _check_choices(lock: LockFile, extras: Sequence[str], groups: Sequence[str]) -> None:
    manifest = read_manifest(lock.folder)
    if lock.kind == "uv.lock" and manifest is not None:
        check_choices(manifest, extras, groups)
    elif extras or groups:
        named = ", ".join([*extras, *groups])
        raise PreconditionError(
            f"{lock.path.name} is already resolved: it has no extras or groups to choose ({named})",
            hint="add their packages to that lock file, or use uv.lock",
            code="unsupported-setting",
        )


def _find_python(folder: Path, wanted: str) -> str:
    """Return the path of the interpreter that uv would choose, ignoring virtual environments."""
    done = run_uv(["python", "find", "--system", "--no-python-downloads", *([wanted] if wanted else [])], cwd=folder)
    if done.code == 0:
        return done.stdout.strip()
    raise PreconditionError(
        f"no Python {wanted or 'that this project accepts'} on this machine\n  uv: "
        + last_lines(done.stderr, 8).replace("\n", "\n  uv: "),
        hint=f"uv python install {wanted}".rstrip(),
        code="python-unusable",
    )


def _local_packages(lock: LockFile, extras: tuple[str, ...], groups: tuple[str, ...]) -> tuple[LocalPackage, ...]:
    """Return the packages in the checkout that these extras and groups use."""
    folders = [lock.folder]
    if lock.kind == "uv.lock":
        chosen = [f"--extra={each}" for each in extras] + [f"--group={each}" for each in groups]
        done = run_uv(
            [
                "export",
                "--frozen",
                "--offline",
                "--no-hashes",
                "--no-annotate",
                "--no-header",
                "--format",
                "requirements.txt",
                *chosen,
            ],
            cwd=lock.folder,
        )
        if done.code != 0:
            raise PreconditionError(
                f"uv cannot read {lock.path}: {last_lines(done.stderr)}",
                hint=f"uv lock --project {lock.folder}",
                code="lock-invalid",
            )
        folders += [folder for folder in _exported_folders(done.stdout, lock) if folder != lock.folder]
    found = [describe_package(folder, lock.folder) for folder in folders]
    return tuple(package for package in found if package is not None)


def _exported_folders(exported: str, lock: LockFile) -> list[Path]:
    found = []
    for line in exported.split("\n"):
        text = line.partition(" ; ")[0].removeprefix("-e ").strip()
        text = text.rpartition(" @ ")[2].removeprefix("file://")
        # Relative paths are relative to uv's folder; a wheel or an archive is installed from the lock file.
        if text.startswith((".", "/")) and (lock.folder / text).is_dir():
            found.append(Path(os.path.normpath(lock.folder / text)))
    return found
