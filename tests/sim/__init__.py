"""Deterministic simulation: one seed replays one history, faults included.

The shipped `Supervisor`, `Leader`, `Restarts`, `Fencer` and `Heartbeat` with all that they drive run over virtual ports:
processes, disks, network and clocks. At virtual Slurm sites, a third of all seeds, so do `LinkManager` and
`SlurmScheduler`. Clients run the shipped `submit`, `reconciler` and `control`.
"""

from __future__ import annotations

from tests.sim.mutants import MUTANTS
from tests.sim.simulate import Result, simulate

__all__ = ["MUTANTS", "Result", "simulate"]
