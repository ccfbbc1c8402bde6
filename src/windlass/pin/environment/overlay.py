"""Overlays: what a checkout must have built and installed, once per tree, beside the shared environment."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.pin.environment.cached import Cached, build_once
from windlass.pin.environment.pinned import EnvironmentPin
from windlass.pin.environment.uv_tool import run_uv

__all__ = ["IGNORED_FOLDERS", "build_failure", "ensure_overlay", "tree_stamp"]

IGNORED_FOLDERS = (
    ".git",
    ".hg",
    ".venv",
    "venv",
    "__pycache__",
    "node_modules",
    ".tox",
    ".nox",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
)


def ensure_overlay(
    pin: EnvironmentPin, code_folder: Path, tree: str, python: Path, cache: Path, log: Callable[[str], None]
) -> Cached:
    """Build and install the checkout's packages into a folder of their own; cached by environment and tree.

    Args:
        tree: id of the code's tree; empty for code that runs in place, which is then stamped by names, sizes and times.
    """
    stamp = tree or tree_stamp(code_folder)
    place = cache / "overlays" / f"{pin.key[:16]}-{stamp[:40]}"
    log_file = place.with_name(place.name + ".log")

    def build(folder: Path) -> dict[str, object]:
        log_file.write_text("")
        for package in pin.local_packages:
            if package.must_be_installed:
                log(f"building {package.name} from the checkout")
                _install(package.name, code_folder / package.path, folder, python, stamp, log_file)
        (folder / ".windlass").touch()
        return {"stamp": stamp}

    return build_once(place, ".windlass", build, log)


def tree_stamp(folder: Path) -> str:
    """A quick stamp of a folder's files by name, size and time; ignored folders left out."""
    digest = hashlib.sha256()
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name not in IGNORED_FOLDERS)
        for name in sorted(names):
            path = os.path.join(root, name)
            status = os.lstat(path)
            digest.update(
                f"{os.path.relpath(path, folder)}\0{status.st_size}\0{status.st_mtime_ns}\0".encode(
                    errors="surrogateescape"
                )
            )
    return digest.hexdigest()


def build_failure(what: str, code: int, log_file: Path) -> PreconditionError:
    """The error for a failed uv command, with its last lines and where all of them are."""
    text = log_file.read_text(errors="replace") if log_file.exists() else ""
    lines = [line.rstrip() for line in text.split("\n") if line.strip()][-12:]
    said = "\n".join(f"  uv: {line}" for line in lines) or "  uv: (no output)"
    if "No space left on device" in text or "os error 28" in text:
        return PreconditionError(
            f"no space left while {what}\n{said}\n  log: {log_file}", hint="windlass gc", code="disk-full"
        )
    hint = (
        "set UV_OFFLINE=0 once, or give uv an index or UV_FIND_LINKS"
        if "network was disabled" in text
        else "read the log"
    )
    return PreconditionError(
        f"{what} failed: uv ended with code {code}\n{said}\n  log: {log_file}", hint=hint, code="env-build-failed"
    )


def _install(name: str, source: Path, target: Path, python: Path, stamp: str, log_file: Path) -> None:
    """Build from a copy, so that nothing is written into the checkout."""
    if not source.is_dir():
        raise PreconditionError(
            f"the local package `{name}` is not in the checkout: {source}",
            hint="move it into the repository",
            code="local-package-missing",
        )
    with tempfile.TemporaryDirectory(prefix="windlass-build-") as temporary:
        copy = Path(temporary) / source.resolve().name
        shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns(*IGNORED_FOLDERS))
        # A checkout has no .git, so version-from-git backends are told a version (setuptools-scm, hatch-vcs).
        scm = "SETUPTOOLS_SCM_PRETEND_VERSION_FOR_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
        variables = {scm: os.environ.get(scm, f"0.0.0+g{stamp[:12]}")}
        done = run_uv(
            ["pip", "install", "--no-deps", "--python", str(python), "--target", str(target), str(copy)],
            cwd=copy,
            variables=variables,
            log_file=log_file,
            is_sync=True,
        )
    if done.code != 0:
        raise build_failure(f"building `{name}`", done.code, log_file)
