"""Lock files of projects, checked to be complete, hashed and up to date."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.files import sha256_file
from windlass.core.phrases import count
from windlass.pin.environment.project import ProjectManifest, normalize, read_manifest, read_toml
from windlass.pin.environment.uv_tool import run_uv

__all__ = ["LockFile", "check_is_current", "find_lock_file"]

LockKind = Literal["uv.lock", "pylock", "requirements"]
_HASHES_HINT = "uv pip compile --universal --generate-hashes {source} -o {target}"
_OPTION = re.compile(r"\s--(?:hash|config-settings|global-option)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class LockFile:
    """Lock file that was read and checked."""

    kind: LockKind
    path: Path
    sha256: str
    folder: Path


def find_lock_file(folder: Path) -> LockFile:
    """Return the project's lock file: uv.lock (in a workspace's root), pylock.toml or a hashed requirements.txt.

    Raises:
        PreconditionError: `lock-invalid`, `unpinned-package`, `lock-local`.
    """
    manifest = read_manifest(folder)
    path = _find_uv_lock(folder, manifest)
    if path is not None:
        _check_text(path, folder, manifest)
        return LockFile(kind="uv.lock", path=path, sha256=sha256_file(path), folder=folder)
    pylocks = [folder / "pylock.toml"] if (folder / "pylock.toml").is_file() else sorted(folder.glob("pylock.*.toml"))
    if len(pylocks) > 1:
        raise PreconditionError(
            f"{folder} has {len(pylocks)} lock files: {', '.join(each.name for each in pylocks)}",
            hint="keep one, or name one pylock.toml",
            code="conflicting-options",
        )
    if pylocks:
        _check_names(_check_pylock(pylocks[0]), pylocks[0], manifest)
        return LockFile(kind="pylock", path=pylocks[0], sha256=sha256_file(pylocks[0]), folder=folder)
    requirements = folder / "requirements.txt"
    if requirements.is_file():
        _check_names(_check_requirements(requirements, manifest), requirements, manifest)
        return LockFile(kind="requirements", path=requirements, sha256=sha256_file(requirements), folder=folder)
    raise PreconditionError(
        f"no lock file in {folder}: neither uv.lock nor pylock.toml nor a hashed requirements.txt",
        hint=f"uv lock --project {folder}"
        if manifest is not None
        else f"add a pyproject.toml and run `uv lock --project {folder}`",
        code="lock-invalid",
    )


def check_is_current(lock: LockFile, python: str) -> None:
    """Check with uv that uv.lock is complete and matches the project; first offline, then with the network.

    Args:
        python: path of the interpreter to use; finding one would take uv longer than the check.

    Raises:
        PreconditionError: `lock-invalid`, with uv's message.
    """
    if lock.kind != "uv.lock":
        return
    done = run_uv(["lock", "--check", "--offline", "--python", python], cwd=lock.folder)
    if done.code != 0 and "network was disabled" in done.stderr and not os.environ.get("UV_OFFLINE"):
        # A lock that needs the index is nearly always stale, but only the index can confirm it.
        done = run_uv(["lock", "--check", "--python", python], cwd=lock.folder)
    if done.code == 0:
        return
    skipped = ("Using ", "Resolved ", "warning:")
    lines = [line for line in done.stderr.split("\n") if line.strip() and not line.startswith(skipped)]
    said = "\n".join(f"  uv: {line}" for line in lines[-8:])
    again = f"uv lock --project {lock.folder}"
    if "Failed to parse `uv.lock`" in done.stderr or "unsupported schema version" in done.stderr:
        raise PreconditionError(
            f"{lock.path} is broken\n{said}", hint=f"restore it from git, or `{again}`", code="lock-invalid"
        )
    manifest = lock.folder / "pyproject.toml"
    raise PreconditionError(f"{lock.path} does not match {manifest}\n{said}", hint=again, code="lock-invalid")


def _find_uv_lock(folder: Path, manifest: ProjectManifest | None) -> Path | None:
    if (folder / "uv.lock").is_file():
        return folder / "uv.lock"
    if manifest is None:
        return None
    for parent in folder.parents:
        if (parent / "uv.lock").is_file() and (parent / "pyproject.toml").is_file():
            above = read_manifest(parent)
            return parent / "uv.lock" if above is not None and above.table("tool", "uv", "workspace") else None
        if (parent / ".git").exists():
            return None
    return None


def _check_text(path: Path, folder: Path, manifest: ProjectManifest | None) -> None:
    if manifest is None:
        raise PreconditionError(
            f"{path} has no pyproject.toml next to it", hint="add the project's pyproject.toml", code="lock-invalid"
        )
    read_toml(path, code="lock-invalid", hint=f"restore it from git, or `uv lock --project {folder}`")


def _check_pylock(path: Path) -> set[str]:
    """Return the package names in a PEP 751 lock file, after checking that everything is hashed."""
    hint = "write it again: uv export --format pylock.toml -o " + path.name
    tables = read_toml(path, code="lock-invalid", hint=hint)
    packages = tables.get("packages", [])
    if not isinstance(tables.get("lock-version"), str) or not isinstance(packages, list):
        raise PreconditionError(f"{path} has no `lock-version` or no `packages`", hint=hint, code="lock-invalid")
    names = set()
    for package in packages:
        if not isinstance(package, dict) or "name" not in package:
            raise PreconditionError(f"{path} has a package without a name", hint=hint, code="lock-invalid")
        name = str(package["name"])
        names.add(normalize(name))
        if "directory" in package:
            raise PreconditionError(
                f"{path} installs `{name}` from a folder; this could mix two commits in one environment",
                hint="remove it (the run's checkout is on the path), or use uv.lock",
                code="lock-local",
            )
        files = [
            *package.get("wheels", []),
            *([package["sdist"]] if "sdist" in package else []),
            *([package["archive"]] if "archive" in package else []),
        ]
        if "vcs" not in package and not (files and all(each.get("hashes") for each in files)):
            raise PreconditionError(f"{path} has no hash for `{name}`", hint=hint, code="unpinned-package")
    return names


def _check_requirements(path: Path, manifest: ProjectManifest | None) -> set[str]:
    """Return the package names in a requirements file, after checking that each line is pinned and hashed."""
    text = re.sub(r"\\\r?\n", " ", path.read_text(encoding="utf-8", errors="replace"))
    lines = [re.sub(r"(?:^|\s)#.*", "", line).strip() for line in text.split("\n")]
    target = "requirements.txt"
    source = "pyproject.toml" if manifest is not None else "requirements.in"
    hint = _HASHES_HINT.format(source=source, target=target)
    names, bad = set(), []
    for line in lines:
        if not line or line.startswith(
            (
                "--index-url",
                "--extra-index-url",
                "--find-links",
                "--no-binary",
                "--only-binary",
                "--no-index",
                "-i ",
                "-f ",
            )
        ):
            continue
        name = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)
        if name is None or "--hash=" not in line:
            bad.append(_OPTION.split(line)[0].strip())
        else:
            names.add(normalize(name.group(0)))
    if bad:
        shown = ", ".join(bad[:5]) + (f" and {len(bad) - 5} more" if len(bad) > 5 else "")
        raise PreconditionError(
            f"{path} has {count(len(bad), 'line')} without a hash: {shown}", hint=hint, code="unpinned-package"
        )
    return names


def _check_names(locked: set[str], path: Path, manifest: ProjectManifest | None) -> None:
    """Raise if the manifest requires a package that is not locked, which shows that the lock file is out of date."""
    wanted = manifest.table("project").get("dependencies", []) if manifest is not None else []
    missing = []
    for requirement in wanted if isinstance(wanted, list) else []:
        name = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)", str(requirement))
        if name is not None and ";" not in str(requirement) and normalize(name.group(1)) not in locked:
            missing.append(name.group(1))
    if missing:
        raise PreconditionError(
            f"{path} lacks packages that pyproject.toml requires: {', '.join(missing)}",
            hint=_HASHES_HINT.format(source="pyproject.toml", target=path.name)
            if path.suffix == ".txt"
            else f"uv export --format pylock.toml -o {path.name}",
            code="lock-invalid",
        )
