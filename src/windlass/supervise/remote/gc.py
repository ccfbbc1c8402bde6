"""Removal of ended runs, their checkpoints and unused environments at a site, on behalf of a client.

The client decides by its rules; this module also checks that a run is over, or that an environment is unused.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Callable

from windlass.core.errors import NotFoundError, PreconditionError, WindlassError
from windlass.core.files import disk_bytes
from windlass.core.tree import remove_tree
from windlass.core.units import format_duration
from windlass.record import events
from windlass.record.journal import JournalReader
from windlass.record.state import State, fold
from windlass.supervise.builds.once import READY, is_being_built, remove_built
from windlass.supervise.remote.checkpoint_files import delete, find_checkpoints, move_to_trash, newest_intact, trashed
from windlass.supervise.remote.framing import unpack
from windlass.supervise.remote.sync import below

__all__ = ["TRASH", "clear"]

TRASH = ".trash-"
"""Name prefix of a folder in `runs` that is being removed."""


def clear(source: BinaryIO) -> dict[str, Any]:
    """Execute one removal request; idempotent. The header's `what` is one of:

    `held`: list the checkpoints of `task` in the run's folder `root`, including those that match `pattern`. The answer:
    `held`: [name, step, at, is_committed, bytes] of each, oldest first; `whole`: the newest one with correct sizes, or "".
    `checkpoints`: remove those with `names` of `task` in `root`.
    `run`: remove `root`; `bytes` of the answer is its size.
    `environments`: remove environments of windlass's folder `state` that were unused for `older_than_s`, that no run here
    may resume with, and that are not in `keep` (name: why); with `is_dry` only list them. The answer: `environments`: [name,
    bytes, why it is kept or ""].

    Raises:
        PreconditionError: the run is active.
        NotFoundError: there is no such run.
    """
    header, _ = unpack(source.read())
    return _WHAT[header["what"]](header)


def _held(header: dict[str, Any]) -> dict[str, Any]:
    folder = below(Path(header["root"]), f"checkpoints/{header['task']}")
    held = find_checkpoints(folder, header["pattern"])
    whole = newest_intact(held, reads=False)
    names = [
        [each.path.relative_to(folder).as_posix(), each.step, each.at, each.is_committed, disk_bytes(each.path)]
        for each in held
    ]
    return {"held": names, "whole": "" if whole is None else whole.path.relative_to(folder).as_posix()}


def _remove_checkpoints(header: dict[str, Any]) -> dict[str, Any]:
    root = Path(header["root"])
    _check_over(root)
    folder = below(root, f"checkpoints/{header['task']}")
    for path in [below(folder, name) for name in header["names"]]:
        if os.path.lexists(str(path)):
            move_to_trash(path, folder)
    for left in trashed(folder):
        delete(left)
    return {}


def _remove_run(header: dict[str, Any]) -> dict[str, Any]:
    """Rename a run's folder, then delete it; also delete what an earlier removal left behind."""
    root = Path(header["root"])
    if root.parent.name != "runs" or not root.is_absolute():
        raise PreconditionError(f"{root} is not the folder of a run", code="run-not-found")
    trash = root.with_name(TRASH + root.name)
    num_bytes = 0
    if root.is_dir():
        _check_over(root)
        num_bytes = disk_bytes(root)
        os.rename(str(root), str(trash))
    remove_tree(str(trash))
    return {"bytes": num_bytes}


def _check_over(root: Path) -> None:
    if not (root / "journal").is_dir():
        raise NotFoundError(
            f"no run in {root}", hint="check whether its folder was removed at the site", code="run-gone-at-site"
        )
    if not _state(root).is_terminal:
        raise PreconditionError(f"{root.name} is active at the site", hint="stop it first", code="run-active")


def _state(root: Path) -> State:
    return fold(JournalReader(root / "journal", skip=(events.METRICS,)).poll()).state


def _environments(header: dict[str, Any]) -> dict[str, Any]:
    envs, before = Path(header["state"]) / "envs", time.time() - header["older_than_s"]
    places = sorted(place for place in envs.iterdir() if (place / READY).is_file()) if envs.is_dir() else []
    needs = dict(_needs(envs.parent / "runs")) if places else {}
    found = []
    for place in places:
        used_at = (place / READY).stat().st_mtime
        users = [run for run, text in needs.items() if place.name in text]
        why = header["keep"].get(place.name, "") or (f"{users[0]} may resume with it" if users else "")
        if is_being_built(place):
            why = "it is being built"
        elif not why and used_at > before:
            why = f"used {format_duration(max(0, int(time.time() - used_at)))} ago"
        num_bytes = 0 if why else disk_bytes(place)
        if not why and not header["is_dry"] and not remove_built(place, used_at):
            why = "it was used meanwhile"
        found.append([place.name, num_bytes, why])
    return {"environments": found}


def _needs(runs: Path) -> Iterator[tuple[str, str]]:
    """Yield the name, plan and locations of each run that did not succeed; an unreadable run may still be resumed."""
    for root in sorted(runs.iterdir()) if runs.is_dir() else ():
        try:
            is_done = _state(root) is State.SUCCEEDED
        except (OSError, WindlassError):
            is_done = False
        files = [root / name for name in ("plan.json", "places.json")] if not is_done else []
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in files if path.is_file()]
        if texts:
            yield root.name, "\n".join(texts)


_WHAT: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "held": _held,
    "checkpoints": _remove_checkpoints,
    "run": _remove_run,
    "environments": _environments,
}
