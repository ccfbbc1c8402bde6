"""Requests to the next head of a sweep, in a file that the head deletes once they are in the journal."""

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
    """Write the requests to the next head, if there are any."""
    wishes = {name: asdict(wish) for name, wish in (("resume", resume), ("extend", extend)) if wish is not None}
    if wishes:
        write_json(folder / _WISHES, wishes)


def read_pending_requests(folder: Path) -> dict[str, Any]:
    """Read the requests as arguments for `run_head`; carrying them out is idempotent."""
    try:
        found = read_json(folder / _WISHES)
    except (FileNotFoundError, ValueError):
        return {}
    assert isinstance(found, dict)
    makers = {"resume": Resume, "extend": Extension}
    return {name: makers[name](**wish) for name, wish in found.items() if name in makers}


def delete_pending_requests(folder: Path) -> None:
    """Delete the requests after they were journalled or rejected. Idempotent."""
    (folder / _WISHES).unlink(missing_ok=True)
