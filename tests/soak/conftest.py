"""The stage of the system tests, and a place for the figures."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.tree import ROOT
from tests.system.conftest import _own_world, stage

__all__ = ["_own_world", "evidence", "stage"]


@pytest.fixture
def evidence() -> Callable[[str, str], None]:
    """A function that keeps a table in docs/evidence, with the day and the load it was made under."""

    def keep(name: str, text: str) -> None:
        load = f"{os.getloadavg()[0]:.1f}"
        head = f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} cores, load {load} at the end (`make soak`)"
        path = Path(ROOT) / "docs" / "evidence" / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{head}\n\n{text}\n")

    return keep
