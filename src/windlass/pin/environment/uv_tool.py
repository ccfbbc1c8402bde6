"""Interface to uv: its binary and its variables.

The user's UV_* variables apply (index, cache, offline, certificates), except those that select another project.
Source: uv reference, "Environment variables".
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from windlass.core.errors import PreconditionError
from windlass.core.process import Completed, run
from windlass.supervise.builds.recipe import AIMING_VARIABLES

__all__ = ["content_variables", "find_uv", "run_uv"]

BUILD_TIMEOUT_S = 4 * 3600.0
# They change what one lock file installs, so they are part of an environment's key.
_CONTENT = [
    "UV_NO_DEV",
    "UV_DEV",
    "UV_NO_GROUP",
    "UV_NO_DEFAULT_GROUPS",
    "UV_NO_BINARY",
    "UV_NO_BINARY_PACKAGE",
    "UV_NO_BUILD",
    "UV_NO_BUILD_PACKAGE",
    "UV_TORCH_BACKEND",
    "UV_COMPILE_BYTECODE",
]


def find_uv() -> str:
    """Return the path of the uv binary that is installed with windlass, or else of the one on the PATH."""
    try:
        import uv  # lazy: only environments need it

        return str(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise PreconditionError("uv is not installed", hint="pip install uv", code="program-missing")
    return found


def run_uv(
    arguments: Sequence[str],
    *,
    cwd: Path,
    variables: Mapping[str, str] | None = None,
    log_file: Path | None = None,
    is_sync: bool = False,
) -> Completed:
    """Run uv until it exits, whatever its exit code.

    Args:
        log_file: receives its output as it is printed, instead of capturing it.
        is_sync: whether it installs, so that uv also uses pip's local wheels (PIP_FIND_LINKS).
    """
    environment = {name: value for name, value in os.environ.items() if name not in AIMING_VARIABLES}
    environment |= {"UV_NO_PROGRESS": "1", "NO_COLOR": "1"}
    if is_sync and environment.get("PIP_FIND_LINKS") and not environment.get("UV_FIND_LINKS"):
        environment["UV_FIND_LINKS"] = ",".join(environment["PIP_FIND_LINKS"].split())
    environment |= dict(variables or {})
    argv = [find_uv(), *arguments]
    if log_file is not None:
        argv = ["/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1', str(log_file), *argv]
    return run(argv, cwd=cwd, env=environment, timeout_s=BUILD_TIMEOUT_S)


def content_variables() -> dict[str, str]:
    """Return the user's UV_* variables that affect what is installed."""
    return {name: os.environ[name] for name in _CONTENT if os.environ.get(name)}
