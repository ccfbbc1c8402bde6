"""Folder of windlass's state on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError

__all__ = ["Home", "cache_directory"]


@dataclass(frozen=True, slots=True)
class Home:
    """Folder with runs, caches, vault and leases; each part is created, private, on first use."""

    path: Path

    @classmethod
    def default(cls, environ: Mapping[str, str] = os.environ) -> Home:
        """`$WINDLASS_HOME`, else `windlass` in the XDG data directory."""
        stated = environ.get("WINDLASS_HOME")
        if stated:
            return cls(Path(stated).expanduser().absolute())
        return cls(_xdg(environ, "XDG_DATA_HOME", ".local/share") / "windlass")

    @property
    def runs(self) -> Path:
        """Folder with one folder per run."""
        return self._part("runs")

    @property
    def sweeps(self) -> Path:
        """Folder of sweeps; not created here."""
        return self.path / "sweeps"

    @property
    def cache(self) -> Path:
        """Folder of environments, downloads and other files that can be built again."""
        return self._part("cache")

    @property
    def vault(self) -> Path:
        """Folder of encrypted secrets."""
        return self._part("vault")

    @property
    def leases(self) -> Path:
        """Folder of leases: resources of this machine in use by runs."""
        return self._part("leases")

    def _part(self, name: str) -> Path:
        path = self.path / name
        if path.is_dir():
            return path
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            ignore = self.path / ".gitignore"  # a home inside a project must not make its tree dirty
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            hint = "set WINDLASS_HOME to a writable folder: export WINDLASS_HOME=/path/to/folder"
            message = f"cannot create {path}: {error.strerror or error}"
            raise PreconditionError(message, hint=hint, code="home-not-writable") from error
        return path


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return windlass's folder in the user's cache directory; not created here."""
    return _xdg(environ, "XDG_CACHE_HOME", ".cache") / "windlass"


def _xdg(environ: Mapping[str, str], name: str, default: str) -> Path:
    """Return a base directory; relative ones are ignored (XDG Base Directory Specification 0.8)."""
    stated = Path(environ.get(name, ""))
    return stated if stated.is_absolute() else Path.home() / default
