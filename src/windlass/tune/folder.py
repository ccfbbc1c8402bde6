"""Layout of a sweep's folder, except the files that `sweep` and some executors write.

<storage_path>/<name>/
    journal/head.wj                              the sweep; all other state is derived from it
    journal/head.json                            the process that holds the lease, for users
    checkpoints/<trial>/<iteration>-<attempt>/   committed by their manifest
    trials/<trial>/                              a trial's files; created when it writes some
    spools/                                      messages of workers while no head was connected
    control/                                     requests to the head from other processes
    followers/                                   position and messages of each follower
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["HEAD", "SweepFolder", "checkpoint_name"]

HEAD = "head"


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """Paths of a sweep; creates nothing."""

    path: Path

    @property
    def journal(self) -> Path:
        """Folder of the journal, which holds only the head's file."""
        return self.path / "journal"

    @property
    def head_journal(self) -> Path:
        """Journal; its lock is the head's lease."""
        return self.journal / "head.wj"

    @property
    def head_note(self) -> Path:
        """Host and process of the head, for the error message of a second one."""
        return self.journal / "head.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints, unless the sweep stores them elsewhere."""
        return self.path / "checkpoints"

    @property
    def spools(self) -> Path:
        """Folder of the workers' messages."""
        return self.path / "spools"

    @property
    def control(self) -> Path:
        """Requests to the head."""
        return self.path / "control"

    @property
    def followers(self) -> Path:
        """Folder of the followers' positions."""
        return self.path / "followers"

    def checkpoint(self, trial: str, iteration: int, attempt: int) -> Path:
        """Return the folder of a checkpoint."""
        return self.checkpoints / trial / checkpoint_name(iteration, attempt)

    def trial(self, trial: str) -> Path:
        """Return a trial's own folder."""
        return self.path / "trials" / trial


def checkpoint_name(iteration: int, attempt: int) -> str:
    """Return the last part of a checkpoint's path."""
    return f"{iteration:06d}-{attempt}"
