"""Leader election: rank 0 first, the other ranks in order if a leader is lost; the highest epoch wins.

A claim is a file `leader-<epoch>.json` that only one replica can create. Rank 0 is only special in that it comes first:
losing the leader costs the gang `PATIENCE_S`, about as much as losing any other replica.

Epochs increase over all starts of a job. A replica follows only claims of its start; a claim of a later start means that
the scheduler has restarted the job, and ends everything of the earlier start. So does any claim in the folder of a later
job of the same task, `<task>-<number>`, which numbers its epochs separately.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.files import write_new
from windlass.core.json_text import read_json

__all__ = ["Candidate", "Claims", "Leadership", "job_number", "other_jobs", "publish_claim", "read_claims"]

PATIENCE_S = 10.0
"""Time without a leader after which rank 0 (and each next rank 5 s later) tries to lead."""

_PER_RANK_S = 5.0
_NAME = ("leader-", ".json")
_JOB = re.compile(r"(.+)-([0-9]+)")


@dataclass(frozen=True)
class Leadership:
    """Claim to lead: the epoch, the leader, and its address for the replicas.

    Attributes:
        incarnation: start of the job that it belongs to; empty on one machine.
    """

    epoch: int
    rank: int
    host: str
    address: str
    port: int
    process: str
    incarnation: str = ""


@dataclass(frozen=True)
class Claims:
    """Claims to lead a job, as seen by one start of it.

    Attributes:
        own: newest claim of this start.
        newest: newest claim of any start.
        has_later_job: whether a later job of the same task has a leader.
    """

    own: Leadership | None = None
    newest: Leadership | None = None
    has_later_job: bool = False

    @property
    def is_superseded(self) -> bool:
        """Return whether a later start of the job, or a later job of the task, has a leader."""
        return self.has_later_job or self._has_later_start

    @property
    def _has_later_start(self) -> bool:
        return self.own is not None and self.newest is not None and self.newest.epoch > self.own.epoch

    @property
    def next_epoch(self) -> int:
        """Return the first epoch without a claim."""
        return self.newest.epoch + 1 if self.newest is not None else 1


class Candidate:
    """Pure policy that decides when a replica tries to become the leader."""

    def __init__(self, rank: int, now: float) -> None:
        self._rank = rank
        self._connected_at = now

    def on_connected(self, now: float) -> None:
        """Record contact with the leader."""
        self._connected_at = now

    def on_leader_gone(self, now: float) -> None:
        """Skip the waiting time, because the leader's guard and supervisor are known to be dead."""
        self._connected_at = now - PATIENCE_S - _PER_RANK_S * self._rank

    @staticmethod
    def must_yield(epoch: int, claims: Claims) -> bool:
        """Return whether the leader of this epoch must give way to a higher epoch."""
        return claims.own is not None and claims.own.epoch > epoch

    def epoch_to_claim(self, now: float, claims: Claims) -> int:
        """Return the epoch to claim now; 0 to keep waiting for the current leader."""
        if claims.is_superseded:
            return 0
        is_due = now >= self._connected_at + PATIENCE_S + _PER_RANK_S * self._rank
        is_first = claims.own is None and self._rank == 0
        is_mine = claims.own is not None and claims.own.rank == self._rank
        return claims.next_epoch if is_due or is_first or is_mine else 0


def read_claims(folder: Path, incarnation: str = "") -> Claims:
    """Read the claims in a job's folder for one start of it; this reads one file, or a few after a new start.

    A start with a name also reads claims of later jobs of its task.
    """
    begin, end = _NAME
    newest, own, has_later_job = None, None, bool(incarnation) and _has_later_job(folder)
    for epoch in sorted((int(name[len(begin) : -len(end)]) for name in _claim_names(folder)), reverse=True):
        claim = Leadership(**read_json(folder / f"{begin}{epoch}{end}"))
        newest = newest or claim
        if claim.incarnation == incarnation:
            own = claim
            break
    return Claims(own, newest, has_later_job)


def _claim_names(folder: Path) -> list[str]:
    begin, end = _NAME
    return [name for name in os.listdir(str(folder)) if name.startswith(begin) and name.endswith(end)]


def _has_later_job(folder: Path) -> bool:
    own = job_number(folder)
    return any(number > own and _claim_names(other) for number, other in other_jobs(folder).items())


def job_number(job_folder: Path) -> int:
    """Return the number in the name of a job's folder, `<task>-<number>`; 0 for any other name."""
    found = _JOB.fullmatch(job_folder.name)
    return int(found[2]) if found is not None else 0


def other_jobs(job_folder: Path) -> dict[int, Path]:
    """Return the folders of the task's other jobs by number; blocks on the shared file system."""
    own = _JOB.fullmatch(job_folder.name)
    if own is None:
        return {}
    named = [_JOB.fullmatch(name) for name in os.listdir(str(job_folder.parent))]
    same = [found for found in named if found is not None and found[1] == own[1] and found[2] != own[2]]
    return {int(found[2]): job_folder.with_name(found[0]) for found in same}


def publish_claim(folder: Path, leadership: Leadership) -> bool:
    """Claim an epoch; return False if another replica already has. Atomic."""
    begin, end = _NAME
    return write_new(folder / f"{begin}{leadership.epoch}{end}", json.dumps(asdict(leadership)).encode())
