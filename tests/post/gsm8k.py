"""Rows of GSM8K, where its files are at hand."""

from __future__ import annotations

import json
import os
from pathlib import Path

__all__ = ["rows_of_gsm8k"]


def rows_of_gsm8k() -> list[dict[str, str]]:
    """Return all rows of GSM8K, or none where its files are not at hand."""
    folder = os.environ.get("WINDLASS_TEST_DATA", "")
    files = [file for split in ("train", "test") if (file := Path(folder, f"gsm8k-{split}.jsonl")).is_file()]
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()] if folder else []
    assert len(rows) in (0, 7473 + 1319)
    return rows
