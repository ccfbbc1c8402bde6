"""Slurm sites, through Slurm's own command line."""

from __future__ import annotations

from windlass.backends.slurm.backend import SlurmBackend

__all__ = ["SlurmBackend"]
