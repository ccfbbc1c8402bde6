"""Deterministic simulation of the decision cores: one seed replays one history, faults included.

The shipped `GangCore`, `ReplicaCore`, `Candidate`, `StallWatch`, `Gate`, `classify`, `decide`, `reconcile`, `fold` and
journal frames run in virtual time among virtual nodes, disks, networks, processes, schedulers and clients. At virtual
Slurm sites, a third of all seeds, so do `LinkManager`, `SlurmScheduler`, `Deadlines`, `FencingAgentCore` and `HeartbeatWatch`.
"""

from __future__ import annotations

from tests.sim.mutants import MUTANTS
from tests.sim.simulate import Result, simulate

__all__ = ["MUTANTS", "Result", "simulate"]
