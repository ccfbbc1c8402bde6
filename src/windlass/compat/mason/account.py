"""Whose command line it is: the user's name on Beaker, what secrets the workspace holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from windlass.core.dataclass import dataclass

__all__ = ["KnownAccount", "MasonAccount", "has_beaker"]


class MasonAccount(Protocol):
    """Account data that a launch needs from Beaker; methods may ask Beaker, and raise what its backend raises."""

    @property
    def is_external(self) -> bool:
        """Return True when there is no account: directories stay as they are, and nothing can be submitted."""

    def user(self) -> str:
        """The user's name."""

    def secrets(self, workspace: str | None) -> Sequence[str] | None:
        """Names of the workspace's secrets, of the default one for None; None when they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAccount:
    """An account that is given, not asked for; without a name it is that of somebody without Beaker."""

    name: str = ""
    secret_names: tuple[str, ...] | None = None

    @property
    def is_external(self) -> bool:
        """Return True when no user is known."""
        return not self.name

    def user(self) -> str:
        """The given name."""
        return self.name or "external_user"

    def secrets(self, workspace: str | None) -> Sequence[str] | None:
        """The given names, whatever the workspace."""
        return () if self.is_external else self.secret_names


def has_beaker(environ: Mapping[str, str]) -> bool:
    """Return True when the official tools are configured or have a token; reads neither."""
    if environ.get("BEAKER_TOKEN") or environ.get("BEAKER_CONFIG"):
        return True
    home = environ.get("HOME")
    return bool(home) and (Path(str(home)) / ".beaker" / "config.yml").is_file()
