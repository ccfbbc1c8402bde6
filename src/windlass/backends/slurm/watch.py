"""One look at a site's queue for all runs of a process: `windlass ps` over 500 runs asks Slurm once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from windlass.backends.slurm.commands import SlurmCommands
from windlass.core.dataclass import dataclass
from windlass.core.errors import UnreachableError
from windlass.supervise.slurm.jobs import SlurmJob

__all__ = ["FRESH_FOR_S", "Look", "forget", "look"]

FRESH_FOR_S = 3.0
"""So long an answer serves other questions of the same process."""

_SILENT_FOR_S = 10.0
"""So long a controller that did not answer is not asked again: each question to one that is down takes some ten seconds."""

_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the queue held once.

    Attributes:
        began_at: monotonic time before the question went out; what happened later may be missing.
    """

    began_at: float
    by_mark: dict[str, list[SlurmJob]]

    def links(self, mark: str) -> Sequence[SlurmJob]:
        """The links of a job, in order; submissions that Slurm turned down left out."""
        return self.by_mark.get(mark, [])


_looks: dict[_Key, Look] = {}
_silences: dict[_Key, tuple[float, UnreachableError]] = {}
_lock = threading.Lock()


def look(commands: SlurmCommands, *, not_before: float | None = None) -> Look:
    """The newest look at the queue, or a new one; raises UnreachableError.

    Args:
        not_before: monotonic time that the question must not have been asked before; by default some seconds ago.
    """
    key, began_at = _key(commands), time.monotonic()
    oldest = began_at - FRESH_FOR_S if not_before is None else not_before
    with _lock:
        known, silence = _looks.get(key), _silences.get(key)
        if known is not None and known.began_at >= oldest:
            return known
        if silence is not None and silence[0] > began_at - _SILENT_FOR_S:
            raise silence[1]
        try:
            found = Look(began_at=time.monotonic(), by_mark=_by_mark(commands.jobs()))
        except UnreachableError as error:
            _silences[key] = (time.monotonic(), error)
            raise
        _silences.pop(key, None)
        _looks[key] = found
        return found


def forget(commands: SlurmCommands) -> None:
    """Look again next time: we have just changed the queue, or want to know for sure."""
    with _lock:
        _looks.pop(_key(commands), None)
        _silences.pop(_key(commands), None)


def _by_mark(jobs: Sequence[SlurmJob]) -> dict[str, list[SlurmJob]]:
    found: dict[str, list[SlurmJob]] = {}
    for job in jobs:
        if job.mark and not job.was_refused:
            found.setdefault(job.mark, []).append(job)
    return {mark: sorted(links, key=lambda job: job.link) for mark, links in found.items()}


def _key(commands: SlurmCommands) -> _Key:
    """Which queue this is: on this machine, SLURM_CONF says it."""
    local = os.environ.get("SLURM_CONF", "") if commands.shell.is_local else ""
    return (commands.shell.name, commands.profile.scheduler.bin, local)
