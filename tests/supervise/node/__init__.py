"""Tests of windlass.supervise.node."""
