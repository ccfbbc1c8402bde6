"""Ids of a launch: run id, checkpoint folder and experiment name.

Random ids come from one injected source. A run's id is drawn once per launch and written to the specification, so every
retry and every start after a preemption has the same id. The folder of its checkpoints is derived from it, so a later
launch with `--run-id` finds both.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence

from windlass.core.dataclass import dataclass

__all__ = ["Identity", "Random", "new_identity", "random_letters"]

Random = Callable[[int], str]
"""Source of a number of random letters and digits."""

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
_NUM_LETTERS = 8
_MAX_NAME = 63
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


def random_letters(count: int) -> str:
    """Return unguessable letters and digits."""
    return "".join(_ALPHABET[int.from_bytes(os.urandom(8), "big") % len(_ALPHABET)] for _ in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Ids of one launch."""

    run_id: str
    launch: str
    """Random letters of this launch, so that each launch of a run creates its own experiment."""

    def of_task(self, index: int) -> str:
        """Return a task's run id: the launch's id for the first task, an id derived from it for others."""
        return _letters(f"{self.run_id}/{index}") if index else self.run_id

    def checkpoint_folder(self, index: int) -> str:
        """Return the name of a task's checkpoint folder: two numbers as in mason, but derived from the run id."""
        digest = hashlib.sha256(f"checkpoints of {self.of_task(index)}".encode()).digest()
        first, second = int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:16], "big")
        return f"{10**9 + first % 10**9}_{second % 10**6}"

    def experiment_name(self, task_name: str) -> str:
        """Return the experiment's name, which is the same for every submission of this launch."""
        tail = f"-{self.run_id[:24]}-{self.launch}"
        head = _NOT_IN_NAMES.sub("-", task_name).strip("-_") or "mason"
        return head[: _MAX_NAME - len(tail)] + tail


def new_identity(asked: str, *, line: Sequence[str], random: Random) -> Identity:
    """Return the ids for a launch.

    Args:
        asked: value of `--run-id`: an id, `auto`, or empty for a new id.
        line: basis of the `auto` id: user, workspace, names, commands.
        random: the source of random letters.
    """
    run_id = _letters("\0".join(line)) if asked == "auto" else asked or random(_NUM_LETTERS)
    return Identity(run_id=run_id, launch=random(_NUM_LETTERS))


def _letters(text: str) -> str:
    number = int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()[:16], "big")
    letters = []
    for _ in range(_NUM_LETTERS):
        number, letter = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[letter])
    return "".join(letters)
