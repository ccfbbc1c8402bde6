"""Deterministic simulation of the decision cores: one seed replays one history, faults included."""

from __future__ import annotations

from windlass.testing.simulation.simulate import Result, simulate

__all__ = ["Result", "simulate"]
