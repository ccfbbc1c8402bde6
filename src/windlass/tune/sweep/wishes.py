"""What the next head of a sweep is to do when it begins, and only that one: left in a file that it takes away."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from windlass.core.files import read_json, write_json
from windlass.tune.controller.opening import Extension
from windlass.tune.controller.settings import Resume

__all__ = ["leave_wishes", "take_wishes"]

_WISHES = "next-head.json"


def leave_wishes(folder: Path, resume: Resume | None, extend: Extension | None) -> None:
    """Write down what the next head is to do; nothing where there is nothing."""
    wishes = {name: asdict(wish) for name, wish in (("resume", resume), ("extend", extend)) if wish is not None}
    if wishes:
        write_json(folder / _WISHES, wishes)


def take_wishes(folder: Path) -> dict[str, Any]:
    """Arguments for `run_head`; the second call finds none."""
    try:
        found = read_json(folder / _WISHES)
    except (FileNotFoundError, ValueError):
        return {}
    (folder / _WISHES).unlink(missing_ok=True)
    assert isinstance(found, dict)
    makers = {"resume": Resume, "extend": Extension}
    return {name: makers[name](**wish) for name, wish in found.items() if name in makers}
