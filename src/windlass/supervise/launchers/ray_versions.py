"""Versions of Ray that clusters are tested with, and what a node with another one says. Pure."""

from __future__ import annotations

import re

__all__ = ["TESTED", "is_tested", "ray_warning"]

TESTED = ((2, 40), (2, 60))
"""Oldest and newest version of Ray that windlass is tested with; both have system tests."""

_NO_TOKENS = "this Ray ignores the cluster's token: whoever reaches its ports can use it (2.52 and newer refuse them)"
_VERSION = re.compile(r"(\d+)\.(\d+)")


def ray_warning(version: str, *, authenticates: bool = True) -> str:
    """Return what a user must know about the Ray of a node; empty if nothing.

    Args:
        version: as Ray states it; empty: it states none.
        authenticates: whether it refuses connections without the cluster's token.
    """
    found = []
    if not is_tested(version):
        oldest, newest = (f"{major}.{minor}" for major, minor in TESTED)
        found.append(f"windlass is tested with Ray {oldest} to {newest}, and this is {version or 'of unknown version'}")
    if not authenticates:
        found.append(_NO_TOKENS)
    return "; ".join(found)


def is_tested(version: str) -> bool:
    """Return whether a version lies between the oldest and the newest that are tested; their patches do, too."""
    match = _VERSION.match(version)
    return match is not None and TESTED[0] <= (int(match[1]), int(match[2])) <= TESTED[1]
