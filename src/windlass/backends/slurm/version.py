"""Which Slurm a site runs, and which options it knows; an option newer than that is never used."""

from __future__ import annotations

import re

from windlass.core.dataclass import dataclass

__all__ = ["OLDEST", "SlurmVersion"]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class SlurmVersion:
    """A release, `22.05.8`."""

    year: int
    month: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.year}.{self.month:02}.{self.patch}"

    @classmethod
    def parse(cls, text: str) -> SlurmVersion | None:
        """The version in what `sbatch --version` prints, or in a profile; None when there is none."""
        match = re.search(r"\b(\d{2})\.(\d{1,2})(?:\.(\d+))?", text)
        return match and cls(year=int(match[1]), month=int(match[2]), patch=int(match[3] or 0))

    @property
    def has_overlap(self) -> bool:
        """Return True when steps may share what they hold, `srun --overlap`; source: Slurm's NEWS for 20.11."""
        return (self.year, self.month) >= (20, 11)

    @property
    def has_me(self) -> bool:
        """Return True when `squeue --me` exists; source: Slurm's NEWS for 20.02."""
        return (self.year, self.month) >= (20, 2)


OLDEST = SlurmVersion(year=20, month=11)
"""Taken for granted where no version was probed."""
