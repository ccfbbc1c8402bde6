"""Policies broken on purpose."""
from __future__ import annotations
from collections.abc import Iterator
from contextlib import contextmanager

@contextmanager
def mutated(name: str) -> Iterator[None]:
    yield
