"""Who leads: rank 0 at once, and when a leader is gone the next one after a while; the highest epoch counts.

A claim is a file `leader-<epoch>.json` that only one replica can create. No rank is special beyond being first in
line: losing the leader costs the gang `PATIENCE_S`, about what losing any other replica costs.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from windlass.core.files import fsync_directory

__all__ = ["Candidate", "Leadership", "newest_claim", "publish_claim"]

PATIENCE_S = 10.0
"""Seconds without a leader after which rank 0 (and each next rank 5 s later) tries to lead."""

_PER_RANK_S = 5.0


@dataclass(frozen=True)
class Leadership:
    """A claim: who leads with this epoch, and where its replicas connect to."""

    epoch: int
    rank: int
    host: str
    address: str
    port: int
    process: str


class Candidate:
    """The pure policy of one replica: when to try to become leader."""

    def __init__(self, rank: int, now: float) -> None:
        self._rank = rank
        self._connected_at = now

    def on_connected(self, now: float) -> None:
        """The leader was heard."""
        self._connected_at = now

    def on_leader_gone(self, now: float) -> None:
        """It is known that the leader's guard and supervisor are dead: no waiting for them."""
        self._connected_at = now - PATIENCE_S - _PER_RANK_S * self._rank

    @staticmethod
    def must_yield(epoch: int, newest: Leadership | None) -> bool:
        """Whether a leader of this epoch has to follow another replica, which claimed a higher one."""
        return newest is not None and newest.epoch > epoch

    def epoch_to_claim(self, now: float, newest: Leadership | None) -> int:
        """The epoch to claim now, or 0 to go on waiting for the present leader."""
        if newest is None:
            first = self._rank == 0
            is_due = first or now >= self._connected_at + PATIENCE_S + _PER_RANK_S * self._rank
            return 1 if is_due else 0
        if newest.rank == self._rank:
            return newest.epoch + 1
        is_due = now >= self._connected_at + PATIENCE_S + _PER_RANK_S * self._rank
        return newest.epoch + 1 if is_due else 0


def newest_claim(folder: Path) -> Leadership | None:
    """The claim with the highest epoch below a job's folder, or None."""
    names = [name for name in os.listdir(str(folder)) if name.startswith("leader-") and name.endswith(".json")]
    if not names:
        return None
    newest = max(names, key=lambda name: int(name[7:-5]))
    return Leadership(**json.loads((folder / newest).read_bytes()))


def publish_claim(folder: Path, leadership: Leadership) -> bool:
    """Claim an epoch; False when somebody else already has. Atomic: complete under its name or not there."""
    target = folder / f"leader-{leadership.epoch}.json"
    temporary = folder / f".leader-{leadership.epoch}.{leadership.rank}.{os.getpid()}"
    temporary.write_text(json.dumps(asdict(leadership)))
    try:
        os.link(str(temporary), str(target))
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    fsync_directory(folder)
    return True
