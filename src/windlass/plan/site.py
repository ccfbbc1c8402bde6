"""Where a plan is to run: a named place and what it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, cast

from windlass.config import JsonValue
from windlass.core.dataclass import dataclass

if TYPE_CHECKING:
    from windlass.sites import Profile

__all__ = ["LOCAL", "MachineResources", "Site"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineResources:
    """What one machine has, all of it together."""

    num_gpus: int
    num_cpus: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A named place.

    Attributes:
        backend: the kind of the place: `local` or `slurm`.
        machine: what the one machine of a local place has; None: unknown, so nothing is checked against it.
        partition: where `where` names one (`isambard/gpu`), or what `choose_site` chose; empty: the site's own choice.
        passed_over: why `choose_site` did not take the places before this one.
        lore: the site's profile as plain data; empty for a local place.
        folders: folders named by the experiment that this machine has, where anybody looked.
    """

    name: str = "local"
    backend: str = "local"
    machine: MachineResources | None = None
    partition: str = ""
    passed_over: tuple[str, ...] = ()
    lore: Mapping[str, JsonValue] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    @classmethod
    def of(cls, profile: Profile) -> Site:
        """The place that a profile describes."""
        from windlass.config import to_data  # lazy: a local plan needs no profile

        data = cast(Mapping[str, JsonValue], to_data(profile))
        return cls(name=profile.name, backend=profile.kind, lore=data)

    @property
    def profile(self) -> Profile | None:
        """The site's profile, decoded anew; None for a local place."""
        if not self.lore:
            return None
        from windlass.config import from_data  # lazy: as above
        from windlass.sites import Profile  # lazy: as above

        return from_data(Profile, dict(self.lore), source=f"site {self.name}")


LOCAL = Site()
