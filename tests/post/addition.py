"""Rows of the tests' task: sums of two numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

__all__ = ["TINY_MODEL", "write_pairs", "write_sums"]

TINY_MODEL = (
    "model={d_model: 32, num_layers: 2, vocab_size: 258, hidden: 64, attention: {num_heads: 2}, max_length: 64, "
    "family: llama, is_tied: true}"
)
"""A model of 35 thousand parameters, as an override."""


def write_sums(path: Path, count: int) -> Path:
    """Write prompts `a+b=` with their sums."""
    return _write(path, ({"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in _numbers(count)))


def write_pairs(path: Path, count: int) -> Path:
    """Write preferences of the sum over a wrong one."""
    rows = ({"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(a + b + 1)} for a, b in _numbers(count))
    return _write(path, rows)


def _numbers(count: int) -> Iterator[tuple[int, int]]:
    return ((number * 7 % 10, number * 3 % 10) for number in range(count))


def _write(path: Path, rows: Iterator[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
