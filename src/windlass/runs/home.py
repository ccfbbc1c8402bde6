"""Folder for windlass's state on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError

__all__ = ["Home", "cache_directory"]


@dataclass(frozen=True, slots=True)
class Home:
    """Folder for runs, caches, the vault and leases; each private part is created on first use."""

    path: Path

    @classmethod
    def default(cls, environ: Mapping[str, str] = os.environ) -> Home:
        """Return `$WINDLASS_HOME`, or `windlass` in the XDG data directory."""
        stated = environ.get("WINDLASS_HOME")
        if stated:
            return cls(Path(stated).expanduser().absolute())
        return cls(_xdg(environ, "XDG_DATA_HOME", ".local/share") / "windlass")

    @property
    def runs(self) -> Path:
        """Return the path of the folder with one folder per run."""
        return self._part("runs")

    @property
    def sweeps(self) -> Path:
        """Return the path of the folder for sweeps, without creating it."""
        return self.path / "sweeps"

    @property
    def cache(self) -> Path:
        """Return the path of the folder for environments, downloads and other files that can be recreated."""
        return self._part("cache")

    @property
    def vault(self) -> Path:
        """Return the path of the folder for encrypted secrets."""
        return self._part("vault")

    @property
    def leases(self) -> Path:
        """Return the path of the folder for leases, which record the resources that runs use."""
        return self._part("leases")

    def _part(self, name: str) -> Path:
        path = self.path / name
        if path.is_dir():
            return path
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            ignore = self.path / ".gitignore"  # a home inside a project must not make the project's tree dirty
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            hint = "set WINDLASS_HOME to a writable folder: export WINDLASS_HOME=/path/to/folder"
            message = f"cannot create {path}: {error.strerror or error}"
            raise PreconditionError(message, hint=hint, code="not-writable") from error
        return path


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of windlass's folder in the user's cache directory, without creating it."""
    return _xdg(environ, "XDG_CACHE_HOME", ".cache") / "windlass"


def _xdg(environ: Mapping[str, str], name: str, default: str) -> Path:
    """Return the path of an XDG base directory, ignoring relative paths (Base Directory Specification 0.8)."""
    stated = Path(environ.get(name, ""))
    return stated if stated.is_absolute() else Path.home() / default
