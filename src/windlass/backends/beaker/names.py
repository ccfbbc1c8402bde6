"""Names of experiments, and whether two specs mean the same work."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any

__all__ = ["beaker_name", "fresh_name", "work_of"]

_NO_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


def fresh_name(spec: Mapping[str, Any]) -> str:
    """A name for an experiment that was given none, from its tasks' names; never the same twice."""
    tasks = [task for task in spec.get("tasks") or () if isinstance(task, Mapping)]
    told = str(tasks[0].get("name") or "experiment") if tasks else "experiment"
    return f"{beaker_name(told, 80)}-{secrets.token_hex(4)}"


def beaker_name(text: str, longest: int) -> str:
    """A text as a name at Beaker: letters, digits, `.`, `_` and `-`, no `-` in front."""
    return _NO_NAME.sub("-", text).lstrip("-")[:longest] or "x"


def work_of(spec: Mapping[str, Any]) -> list[Any]:
    """What an experiment does, without what a server may write in another way (durations, sizes, defaults)."""
    return [
        (
            str(task.get("name") or ""),
            [str(word) for word in task.get("command") or ()],
            [str(word) for word in task.get("arguments") or ()],
            sorted((str(one.get("name")), str(one.get("value") or "")) for one in task.get("envVars") or ()),
        )
        for task in spec.get("tasks") or ()
        if isinstance(task, Mapping)
    ]
