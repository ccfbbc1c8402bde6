"""Simulated sweeps need no disk: only the order of writes counts."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    monkeypatch.setattr(os, "fsync", lambda _: None)
