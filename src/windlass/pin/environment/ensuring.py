"""From an environment pin to an environment that is there."""

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
    """The environment of a run, built when it is not cached yet; idempotent, safe for many processes at once.

    The project itself is never installed into the shared environment: it comes from the run's checkout
    (`path_entries`), or, where it must be built, from an overlay per tree. A hit starts no process.

    Args:
        code_folder: where the project (its lock file) lies in the run's checkout.
        cache: `<home>/cache`; environments go to `envs/<key>`, overlays to `overlays/`.
        tree: id of the code's tree (`CodePin.tree`); empty for code that runs in place.

    Raises:
        PreconditionError: the build failed (the message holds its last lines and the log's path), or the lock changed.
    """
    if pin.kind == "none":
        python = Path(shutil.which("python3") or sys.executable)
        entries = path_entries(pin, code_folder)
        return BuiltEnvironment(
            python=python, bin=python.parent, bins=(), path_entries=entries, packages=(), is_hit=True
        )
    if pin.kind == "python":
        return _found(pin, code_folder)
    from windlass.pin.environment.building import ensure_built  # lazy: brings uv, TOML and locks

    return ensure_built(pin, code_folder, cache, log, tree)


def _found(pin: EnvironmentPin, code_folder: Path) -> BuiltEnvironment:
    """The user's own environment, as it is."""
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
