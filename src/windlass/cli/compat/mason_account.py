"""Account of a mason command line for Beaker, read from Beaker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService

__all__ = ["AskedAccount"]


class AskedAccount:
    """Account read from Beaker; each method is a request and raises the service's errors."""

    is_external = False

    def __init__(self, service: BeakerService) -> None:
        self._service = service

    def user(self) -> str:
        """Return the user's name."""
        return self._service.user()

    def secrets(self, workspace: str | None) -> Sequence[str]:
        """Return the names of the workspace's secrets."""
        return self._service.secrets(workspace or "")
