"""Slurm version at a site, and the options that it supports; newer options are never used."""

from __future__ import annotations

import re

from windlass.core.dataclass import dataclass

__all__ = ["OLDEST", "SlurmVersion"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SlurmVersion:
    """Slurm release, such as `22.05.8`."""

    year: int
    month: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.year}.{self.month:02}.{self.patch}"

    @classmethod
    def parse(cls, text: str) -> SlurmVersion | None:
        """Parse the output of `sbatch --version`, or a profile's version; None if there is none."""
        match = re.search(r"\b(\d{2})\.(\d{1,2})(?:\.(\d+))?", text)
        return match and cls(year=int(match[1]), month=int(match[2]), patch=int(match[3] or 0))

    @property
    def has_overlap(self) -> bool:
        """Return True if steps may share resources (`srun --overlap`); source: Slurm's NEWS for 20.11."""
        return (self.year, self.month) >= (20, 11)

    @property
    def has_me(self) -> bool:
        """Return True if `squeue --me` exists; source: Slurm's NEWS for 20.02."""
        return (self.year, self.month) >= (20, 2)


OLDEST = SlurmVersion(year=20, month=11)
"""Assumed version if none was probed."""
