"""Provisioning of the environment that a pin names."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from windlass.pin.environment.pinned import BuiltEnvironment, EnvironmentPin, path_entries

__all__ = ["ensure_environment"]


def ensure_environment(
    pin: EnvironmentPin, code_folder: Path, cache: Path, *, log: Callable[[str], None], tree: str = ""
) -> BuiltEnvironment:
    """Return the environment for a run, building it if it is not cached; idempotent, safe for concurrent processes.

    The project itself is never installed into the shared environment: it is used from the run's checkout
    (`path_entries`) or, if it must be built, from an overlay per tree. A cache hit starts no process.

    Args:
        code_folder: the folder of the project and its lock file in the run's checkout.
        cache: `<home>/cache`; environments go to `envs/<key>`, overlays to `overlays/`.
        tree: id of the code's tree (`CodePin.tree`); empty for code that runs in place.

    Raises:
        PreconditionError: the build failed (the message has its last lines and the log's path), or the lock changed.
    """
    if pin.kind == "none":
        python = Path(shutil.which("python3") or sys.executable)
        entries = path_entries(pin, code_folder)
        return BuiltEnvironment(
            python=python, bin=python.parent, bins=(), path_entries=entries, packages=(), is_hit=True
        )
    if pin.kind == "python":
        return _found(pin, code_folder)
    from windlass.pin.environment.building import ensure_built  # lazy: imports uv, TOML and locks

    return ensure_built(pin, code_folder, cache, log, tree)


def _found(pin: EnvironmentPin, code_folder: Path) -> BuiltEnvironment:
    """Return the user's own environment, which is used unchanged."""
    from windlass.pin.environment.interpreter import find_interpreter  # lazy: only for this kind

    python = find_interpreter(Path(pin.interpreter))
    return BuiltEnvironment(
        python=python,
        bin=python.parent,
        bins=(python.parent,),
        path_entries=path_entries(pin, code_folder),
        packages=pin.packages,
        is_hit=True,
    )
