"""Tests of windlass.train.model."""
