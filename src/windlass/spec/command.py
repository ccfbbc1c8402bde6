"""Command: a shell line, or the list of its arguments (no shell)."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Command"]

Command: TypeAlias = str | tuple[str, ...]
