"""Account of the user who launches: the user's name at Beaker and the workspace's secrets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from windlass.core.dataclass import dataclass

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService

__all__ = ["AskedAccount", "KnownAccount", "MasonAccount", "has_beaker"]


class MasonAccount(Protocol):
    """Account data that a launch needs.

    Methods may call Beaker and raise the Beaker backend's errors.
    """

    @property
    def is_external(self) -> bool:
        """Return True if there is no account: directories are left unchanged, and nothing can be submitted."""

    def user(self) -> str:
        """Return the user's name."""

    def secrets(self, workspace: str | None) -> Sequence[str] | None:
        """Return the names of the secrets in a workspace, or None if unknown.

        `workspace=None` is the default workspace.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAccount:
    """Account with data given in advance; without a name, it stands for a user without a Beaker account."""

    name: str = ""
    secret_names: tuple[str, ...] | None = None

    @property
    def is_external(self) -> bool:
        """Return True if no user is known."""
        return not self.name

    def user(self) -> str:
        """Return the given name."""
        return self.name or "external_user"

    def secrets(self, workspace: str | None) -> Sequence[str] | None:
        """Return the given names for any workspace."""
        return () if self.is_external else self.secret_names


def has_beaker(environ: Mapping[str, str]) -> bool:
    """Return True if the official tools are configured or have a token; reads neither."""
    if environ.get("BEAKER_TOKEN") or environ.get("BEAKER_CONFIG"):
        return True
    home = environ.get("HOME")
    return bool(home) and (Path(str(home)) / ".beaker" / "config.yml").is_file()


class AskedAccount:
    """Account whose data is read from Beaker; each method sends a request and raises the service's errors."""

    is_external = False

    def __init__(self, service: BeakerService) -> None:
        self._service = service

    def user(self) -> str:
        """Return the name of the user."""
        return self._service.user()

    def secrets(self, workspace: str | None) -> Sequence[str]:
        """Return the names of the secrets in the workspace."""
        return self._service.secrets(workspace or "")
