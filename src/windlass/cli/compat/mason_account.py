"""The account of a mason command line that goes to Beaker: Beaker itself is asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windlass.backends.beaker.service import BeakerService

__all__ = ["AskedAccount"]


class AskedAccount:
    """What Beaker says of its user; each question is a call, and raises what the service raises."""

    is_external = False

    def __init__(self, service: BeakerService) -> None:
        self._service = service

    def user(self) -> str:
        """The user's name."""
        return self._service.user()

    def secrets(self, workspace: str | None) -> Sequence[str]:
        """Names of the workspace's secrets."""
        return self._service.secrets(workspace or "")
