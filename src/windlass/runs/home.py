"""Where windlass keeps its state on this machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.errors import PreconditionError

__all__ = ["Home", "cache_directory"]


@dataclass(frozen=True, slots=True)
class Home:
    """The folder that holds runs, caches, vault and leases; each part is made, for its owner alone, when first asked for."""

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
        """One folder per run."""
        return self._part("runs")

    @property
    def sweeps(self) -> Path:
        """Where sweeps keep their state; not made here."""
        return self.path / "sweeps"

    @property
    def cache(self) -> Path:
        """What can be built again: environments, downloads."""
        return self._part("cache")

    @property
    def vault(self) -> Path:
        """Secrets, encrypted."""
        return self._part("vault")

    @property
    def leases(self) -> Path:
        """Which run holds what of this machine."""
        return self._part("leases")

    def _part(self, name: str) -> Path:
        path = self.path / name
        if path.is_dir():
            return path
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)
            ignore = self.path / ".gitignore"  # a home inside a project's tree must not make the tree dirty
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            hint = "point WINDLASS_HOME to a folder that you may write to: export WINDLASS_HOME=/path/to/folder"
            message = f"cannot make {path}: {error.strerror or error}"
            raise PreconditionError(message, hint=hint, code="home-not-writable") from error
        return path


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Windlass's part of the user's cache directory, on this machine's own disk; not made here."""
    return _xdg(environ, "XDG_CACHE_HOME", ".cache") / "windlass"


def _xdg(environ: Mapping[str, str], name: str, default: str) -> Path:
    """A base directory; a relative one is to be ignored (XDG Base Directory Specification 0.8)."""
    stated = Path(environ.get(name, ""))
    return stated if stated.is_absolute() else Path.home() / default
