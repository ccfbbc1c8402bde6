"""Site of a plan: its name, its backend, and what is known about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, cast

from windlass.config.annotations import JsonValue
from windlass.core.dataclass import dataclass

if TYPE_CHECKING:
    from windlass.sites.profile import Profile

__all__ = ["LOCAL", "Site", "SiteResources"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteResources:
    """Total resources of one machine."""

    num_gpus: int
    num_cpus: float
    memory_bytes: int


class _ProfileData(dict[str, JsonValue]):
    """Data of a site profile, with its decoded form cached: decoding takes 18 ms."""

    __slots__ = ("decoded",)
    decoded: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Site or machine on which a plan runs.

    Attributes:
        backend: `local`, `docker`, `slurm` or `beaker`.
        machine: resources of a local site; None if unknown, so that nothing is checked.
        partition: partition that `where` names (`isambard/gpu`) or `choose_site` chose; the site's default if empty.
        passed_over: reasons why `choose_site` rejected earlier sites.
        profile_data: the site profile as plain data; empty for a local site.
        folders: folders named by the experiment that exist on this machine, if that was checked.
    """

    name: str = "local"
    backend: str = "local"
    machine: SiteResources | None = None
    partition: str = ""
    passed_over: tuple[str, ...] = ()
    profile_data: Mapping[str, JsonValue] = field(default_factory=dict)
    folders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.profile_data, _ProfileData):
            object.__setattr__(self, "profile_data", _ProfileData(self.profile_data))

    @classmethod
    def of(cls, profile: Profile) -> Site:
        """Return the site that a profile describes."""
        from windlass.config.encode import to_data  # lazy: a local plan needs no profile

        data = _ProfileData(cast(Mapping[str, JsonValue], to_data(profile)))
        data.decoded = profile
        return cls(name=profile.name, backend=profile.kind, profile_data=data)

    @property
    def profile(self) -> Profile | None:
        """Return the site profile, decoded on first access; None for a local site."""
        data = self.profile_data
        if not data:
            return None
        assert isinstance(data, _ProfileData)  # see __post_init__
        if not hasattr(data, "decoded"):
            from windlass.config.loading import from_data  # lazy: as above
            from windlass.sites.profile import Profile  # lazy: as above

            data.decoded = from_data(Profile, dict(data), source=f"site {self.name}")
        return data.decoded


LOCAL = Site()
