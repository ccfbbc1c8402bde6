"""Stands in for the redactor when a job's secrets are not known any more."""

from __future__ import annotations

from windlass.record.redact import Redactor

__all__ = ["DiscardingRedactor"]


class DiscardingRedactor(Redactor):
    """Lets no output through, since nobody could tell what in it is secret."""

    def __init__(self) -> None:
        super().__init__({})

    def feed(self, data: bytes, is_final: bool) -> tuple[bytes, int]:
        """Swallow all of `data`."""
        return b"", len(data)
