"""Removal of empty settings from imported files, so that our file shows what was set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["pruned"]


def pruned(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a cluster without empty ones; values that a user names are kept as they are."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        kept = value
        if key == "groups":
            kept = {name: pruned(group) for name, group in value.items()}
        elif key in {"place", "ssh", "aws", "head"}:
            kept = pruned(value)
        if kept is not None and kept is not False and kept not in ("", [], (), {}):
            found[key] = kept
    return found
