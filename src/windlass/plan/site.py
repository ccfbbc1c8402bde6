"""Where a plan is to run: a named place and what it has."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LOCAL", "Machine", "Site"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one machine has, all of it together."""

    num_gpus: int
    num_cpus: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A named place.

    Attributes:
        backend: the kind of the place; only `local` so far.
        machine: what the one machine of a local place has; None: unknown, so nothing is checked against it.
    """

    name: str = "local"
    backend: str = "local"
    machine: Machine | None = None


LOCAL = Site()
