"""Command: a shell line, or a list of arguments that runs without a shell."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["Command"]

Command: TypeAlias = str | tuple[str, ...]
