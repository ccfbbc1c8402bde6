"""The Beaker account that a mason command line uses, read from Beaker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService

__all__ = ["AskedAccount"]


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
