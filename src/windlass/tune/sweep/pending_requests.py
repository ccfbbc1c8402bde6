"""What the next head of a sweep is to do when it begins: left in a file, which it takes away once its journal has it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.core.files import write_json
from windlass.core.json_text import read_json
from windlass.tune.controller.restore import Extension
from windlass.tune.controller.settings import Resume

__all__ = ["delete_pending_requests", "read_pending_requests", "write_pending_requests"]

_WISHES = "next-head.json"


def write_pending_requests(folder: Path, resume: Resume | None, extend: Extension | None) -> None:
    """Write down what the next head is to do; nothing where there is nothing."""
    wishes = {name: asdict(wish) for name, wish in (("resume", resume), ("extend", extend)) if wish is not None}
    if wishes:
        write_json(folder / _WISHES, wishes)


def read_pending_requests(folder: Path) -> dict[str, Any]:
    """Arguments for `run_head`, until they are dropped: to do the same twice changes nothing more."""
    try:
        found = read_json(folder / _WISHES)
    except (FileNotFoundError, ValueError):
        return {}
    assert isinstance(found, dict)
    makers = {"resume": Resume, "extend": Extension}
    return {name: makers[name](**wish) for name, wish in found.items() if name in makers}


def delete_pending_requests(folder: Path) -> None:
    """They are journalled, or refused; idempotent."""
    (folder / _WISHES).unlink(missing_ok=True)
