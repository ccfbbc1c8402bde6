"""Build the environment of a lock file, once per key."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

from windlass.core.errors import PreconditionError
from windlass.core.files import sha256_file
from windlass.core.phrases import count
from windlass.pin.environment.cached import Cached, build_once
from windlass.pin.environment.interpreter import ask_interpreter
from windlass.pin.environment.overlay import build_failure, ensure_overlay
from windlass.pin.environment.pinned import BuiltEnvironment, EnvironmentPin, path_entries
from windlass.pin.environment.uv_tool import run_uv

__all__ = ["ensure_built"]


def ensure_built(
    pin: EnvironmentPin, code_folder: Path, cache: Path, log: Callable[[str], None], tree: str
) -> BuiltEnvironment:
    """The environment of a `uv` pin; see `ensure_environment`."""
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
    """Fill `folder` with a virtual environment; returns the marker's notes."""
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
        raise PreconditionError(f"the checkout has no lock file {path}", hint="commit it", code="lock-missing")
    if sha256_file(path) != pin.lock_sha256:
        raise PreconditionError(
            f"{path} differs from the lock file that was pinned (sha256 {pin.lock_sha256[:12]}...)",
            hint="plan again",
            code="lock-changed",
        )
    return path


def _interpreter(pin: EnvironmentPin, code_folder: Path) -> str:
    """The pinned interpreter, or on another machine one of the same version."""
    if os.path.exists(pin.interpreter) and ask_interpreter(Path(pin.interpreter)).version == pin.python_version:
        return pin.interpreter
    done = run_uv(["python", "find", "--system", pin.python_version], cwd=code_folder)
    if done.code != 0:
        raise PreconditionError(
            f"Python {pin.python_version} is not installed on this machine",
            hint=f"uv python install {pin.python_version}",
            code="python-missing",
        )
    return done.stdout.strip()


def _sync_project(pin: EnvironmentPin, code_folder: Path, folder: Path, interpreter: str, log_file: Path) -> None:
    chosen = [f"--extra={each}" for each in pin.extras] + [f"--group={each}" for each in pin.groups]
    # Every local package stays out: a link from the shared environment into one checkout would reach all runs.
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
