"""One try of a reader with a damaged document."""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["Target", "try_one", "write"]

Target = Callable[[Path, random.Random], None]
"""Reads one damaged document; the folder is empty at first, and its own."""

_LONGEST_S = 2.0
"""Of the processor's time, which others on the machine do not lengthen."""


def try_one(targets: Mapping[str, Target], name: str, seed: int, folder: Path) -> str:
    """What is wrong with how a reader took a damaged document, or an empty string."""
    folder.mkdir(exist_ok=True)
    began_at = time.process_time()
    try:
        targets[name](folder, random.Random(f"{name} {seed}"))
    except Exception as error:  # noqa: BLE001  what it may raise it has caught
        place = traceback.extract_tb(error.__traceback__)[-1]
        return (
            f"{name}:{seed}: {type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:200]}"
        )
    took_s = time.process_time() - began_at
    return f"{name}:{seed}: took {took_s:.1f} s" if took_s > _LONGEST_S else ""


def write(path: Path, content: bytes) -> Path:
    """Put bytes into a file; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
