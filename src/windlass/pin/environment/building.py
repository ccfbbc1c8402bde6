"""Building of the environment in a lock file, once per key and for any number of processes.

    <place>.lock            held while building
    <place>/<generation>/   the build itself, made in its final place (a virtual environment cannot be moved)
    <place>/complete.json   written last, atomically; names the generation

Every build gets a new generation, so the orphan of a killed builder (a uv that still writes) cannot affect a later build.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError
from windlass.core.files import is_locked, lock, sha256_file, write_json
from windlass.core.json_text import read_json
from windlass.core.names import new_token
from windlass.core.phrases import count
from windlass.pin.environment.interpreter import ask_interpreter
from windlass.pin.environment.pinned import BuiltEnvironment, EnvironmentPin, path_entries
from windlass.pin.environment.uv_tool import run_uv

__all__ = [
    "IGNORED_FOLDERS",
    "Cached",
    "build_failure",
    "build_once",
    "ensure_built",
    "ensure_overlay",
    "find_built",
    "tree_stamp",
]

_MARKER = "complete.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """Finished build: its folder, the builder's notes, and whether it already existed."""

    folder: Path
    notes: dict[str, object]
    is_hit: bool


def find_built(place: Path, proof: str) -> Cached | None:
    """Return the finished build at `place`, or None; `proof` names a file in it that must exist."""
    try:
        marker = read_json(place / _MARKER)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    if not isinstance(marker, dict) or not (place / str(marker.get("generation")) / proof).exists():
        return None
    with contextlib.suppress(OSError):  # a shared cache may be read-only; the time is only used by `windlass gc`
        os.utime(place / _MARKER)
    return Cached(folder=place / str(marker["generation"]), notes=marker, is_hit=True)


def build_once(
    place: Path, proof: str, build: Callable[[Path], Mapping[str, object]], log: Callable[[str], None]
) -> Cached:
    """Return the build at `place`, building it under a lock if missing. Blocks while another process builds it.

    Args:
        proof: a file in the build; without it the build is broken (its base interpreter was deleted).
        build: fills the given folder and returns notes for the marker; if it raises, nothing is left behind.
    """
    found = find_built(place, proof)
    if found is not None:
        return found
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreconditionError(
            f"cannot create the cache folder {place}: {error.strerror}",
            hint="set WINDLASS_HOME",
            code="not-writable",
        ) from error
    gate = place.with_name(place.name + ".lock")
    if is_locked(gate):
        log(f"waiting for another process to finish building {place.name[:12]}")
    with lock(gate):
        found = find_built(place, proof)
        if found is not None:
            return found
        _clear(place)
        folder = place / new_token()[:12]
        try:
            folder.mkdir(parents=True)
            notes = dict(build(folder))
            if not (folder / proof).exists():
                raise PreconditionError(
                    f"the build at {folder} exited 0 but did not create {proof}",
                    hint="the log next to it has its output",
                    code="build-failed",
                )
            write_json(place / _MARKER, {**notes, "generation": folder.name})
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return Cached(folder=folder, notes=notes, is_hit=False)


def _clear(place: Path) -> None:
    """Remove what killed builders left behind, the marker first, so that nothing is mistaken for complete."""
    place.mkdir(parents=True, exist_ok=True)
    (place / _MARKER).unlink(missing_ok=True)
    for entry in place.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            # An orphan may still be writing; the next build removes what is left.
            shutil.rmtree(entry, ignore_errors=True)


def ensure_built(
    pin: EnvironmentPin, code_folder: Path, cache: Path, log: Callable[[str], None], tree: str
) -> BuiltEnvironment:
    """Return the environment for a `uv` pin, building it if necessary; see `ensure_environment`."""
    built = build_once(
        cache / "envs" / pin.key, "bin/python", lambda folder: _build(pin, code_folder, folder, log), log
    )
    python = built.folder / "bin" / "python"
    overlay = ensure_overlay(pin, code_folder, tree, python, cache, log) if pin.has_build_step else None
    return _describe(pin, code_folder, built, overlay)


def _describe(pin: EnvironmentPin, code_folder: Path, built: Cached, overlay: Cached | None) -> BuiltEnvironment:
    venv_bin = built.folder / "bin"
    front = () if overlay is None else (overlay.folder,)
    return BuiltEnvironment(
        python=venv_bin / "python",
        bin=venv_bin,
        bins=(*(folder / "bin" for folder in front if (folder / "bin").is_dir()), venv_bin),
        path_entries=front + path_entries(pin, code_folder),
        packages=tuple(cast("list[str]", built.notes["packages"])),
        is_hit=built.is_hit and (overlay is None or overlay.is_hit),
    )


def _build(pin: EnvironmentPin, code_folder: Path, folder: Path, log: Callable[[str], None]) -> dict[str, object]:
    """Create a virtual environment in `folder`; return notes for the marker."""
    log_file = folder.parent.with_name(pin.key + ".log")
    log_file.write_text("")
    log(f"building the environment {pin.key[:12]} (log: {log_file})")
    lock_file = _check_lock(pin, code_folder)
    interpreter = _interpreter(pin, code_folder)
    if lock_file.name == "uv.lock":
        _sync_project(pin, code_folder, folder, interpreter, log_file)
    else:
        _sync_list(lock_file, code_folder, folder, interpreter, log_file)
    python = folder / "bin" / "python"
    if pin.unhashed:
        _run(["pip", "install", "--python", str(python), *pin.unhashed], code_folder, log_file)
    packages = ask_interpreter(python, with_packages=True).packages
    log(f"environment {pin.key[:12]} is ready: {count(len(packages), 'package')}")
    return {"packages": list(packages), "key": pin.key, "python_version": pin.python_version}


def _check_lock(pin: EnvironmentPin, code_folder: Path) -> Path:
    path = Path(os.path.normpath(code_folder / pin.lock_file))
    if not path.is_file():
        raise PreconditionError(f"the checkout has no lock file {path}", hint="commit it", code="lock-invalid")
    if sha256_file(path) != pin.lock_sha256:
        raise PreconditionError(
            f"{path} differs from the lock file that was pinned (sha256 {pin.lock_sha256[:12]}...)",
            hint="plan again",
            code="input-changed",
        )
    return path


def _interpreter(pin: EnvironmentPin, code_folder: Path) -> str:
    """Return the pinned interpreter; on another machine, one of the same version."""
    if os.path.exists(pin.interpreter) and ask_interpreter(Path(pin.interpreter)).version == pin.python_version:
        return pin.interpreter
    done = run_uv(["python", "find", "--system", pin.python_version], cwd=code_folder)
    if done.code != 0:
        raise PreconditionError(
            f"Python {pin.python_version} is not installed on this machine",
            hint=f"uv python install {pin.python_version}",
            code="python-unusable",
        )
    return done.stdout.strip()


def _sync_project(pin: EnvironmentPin, code_folder: Path, folder: Path, interpreter: str, log_file: Path) -> None:
    chosen = [f"--extra={each}" for each in pin.extras] + [f"--group={each}" for each in pin.groups]
    # Local packages are left out: a link from the shared environment into one checkout would affect all runs.
    local = [f"--no-install-package={package.name}" for package in pin.local_packages]
    arguments = [
        "sync",
        "--frozen",
        "--no-install-project",
        "--no-install-workspace",
        *local,
        *chosen,
        "--python",
        interpreter,
    ]
    _run(arguments, code_folder, log_file, UV_PROJECT_ENVIRONMENT=str(folder))


def _sync_list(lock_file: Path, code_folder: Path, folder: Path, interpreter: str, log_file: Path) -> None:
    _run(["venv", "--allow-existing", "--no-project", "--python", interpreter, str(folder)], code_folder, log_file)
    hashes = ["--require-hashes"] if lock_file.suffix == ".txt" else []
    _run(
        [
            "pip",
            "sync",
            "--allow-empty-requirements",
            *hashes,
            "--python",
            str(folder / "bin" / "python"),
            str(lock_file),
        ],
        code_folder,
        log_file,
    )


def _run(arguments: list[str], cwd: Path, log_file: Path, **variables: str) -> None:
    done = run_uv(arguments, cwd=cwd, variables=variables, log_file=log_file, is_sync=True)
    if done.code != 0:
        raise build_failure(f"building the environment (uv {' '.join(arguments[:2])})", done.code, log_file)


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
    """Build the checkout's packages and install them into a separate folder, cached by environment and tree.

    Args:
        tree: id of the code's tree; empty for code that runs in place, which is identified by names, sizes and times.
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
    """Return a quick fingerprint of a folder's files from names, sizes and times, except ignored folders."""
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
    """Return the error for a failed uv command, with its last lines and the log's path."""
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
        f"{what} failed: uv exited with code {code}\n{said}\n  log: {log_file}", hint=hint, code="build-failed"
    )


def _install(name: str, source: Path, target: Path, python: Path, stamp: str, log_file: Path) -> None:
    """Build and install a package from a copy, so that nothing is written into the checkout."""
    if not source.is_dir():
        raise PreconditionError(
            f"the local package `{name}` is not in the checkout: {source}",
            hint="move it into the repository",
            code="code-not-in-commit",
        )
    with tempfile.TemporaryDirectory(prefix="windlass-build-") as temporary:
        copy = Path(temporary) / source.resolve().name
        shutil.copytree(source, copy, symlinks=True, ignore=shutil.ignore_patterns(*IGNORED_FOLDERS))
        # A checkout has no .git, so backends that read the version from git are given one (setuptools-scm, hatch-vcs).
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
