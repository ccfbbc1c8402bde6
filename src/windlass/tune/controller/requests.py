"""Requests to the head of a sweep from another process: numbered files in its `control/` folder.

A request that comes while no head lives is read by the next one.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from windlass.core.files import write_json
from windlass.core.json_text import decode_json
from windlass.tune.controller.inputs import UserRequest
from windlass.tune.folder import SweepFolder

__all__ = ["ask", "read_requests"]


def ask(folder: SweepFolder, what: str, **facts: Any) -> None:
    """Ask the head of a sweep for something: `stop-trial` (trial), `stop-all` or `pause`; it looks every second."""
    folder.control.mkdir(parents=True, exist_ok=True)
    name = f"{time.time_ns():020d}-{os.getpid()}.json"
    write_json(folder.control / name, {"what": what, **facts})


def read_requests(folder: SweepFolder) -> list[tuple[str, UserRequest]]:
    """All that wait, oldest first, each with the file to remove once it is journalled.

    A file that holds no request is set aside under another name: it ends no sweep, and somebody may look at it.
    """
    found = []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(folder.control)):
            if name.endswith(".json") and not name.startswith("."):
                path = folder.control / name
                asked = _read(path.read_bytes())
                if asked is None:
                    os.replace(path, path.with_suffix(".damaged"))
                else:
                    found.append((str(path), asked))
    return found


def _read(content: bytes) -> UserRequest | None:
    """The request of a file; None where it holds none."""
    try:
        data = decode_json(content)
        facts = {key: value for key, value in data.items() if key != "what"}
        what = data["what"]
    except (ValueError, KeyError, AttributeError):
        return None
    is_whole = isinstance(what, str) and (what != "stop-trial" or isinstance(facts.get("trial"), str))
    return UserRequest(what=what, facts=facts) if is_whole else None
