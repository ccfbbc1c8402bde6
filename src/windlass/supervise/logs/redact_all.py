"""Redactor for a job whose secrets are unknown."""

from __future__ import annotations

from windlass.record.redact import Redactor

__all__ = ["DiscardingRedactor"]


class DiscardingRedactor(Redactor):
    """Redactor that discards all output, since it may contain unknown secrets."""

    def __init__(self) -> None:
        super().__init__({})

    def feed(self, data: bytes, is_final: bool) -> tuple[bytes, int]:
        """Discard all of `data`."""
        return b"", len(data)
