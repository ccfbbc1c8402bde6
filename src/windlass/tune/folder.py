"""Layout of a sweep's folder, except for the files that `sweep` and some executors write.

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
    """Paths in a sweep's folder. Creates nothing."""

    path: Path

    @property
    def journal(self) -> Path:
        """Folder of the journal, which contains only the head's file."""
        return self.path / "journal"

    @property
    def head_journal(self) -> Path:
        """Journal file, whose lock is the head's lease."""
        return self.journal / "head.wj"

    @property
    def head_note(self) -> Path:
        """File with the head's host and process, for the error message that a second head gets."""
        return self.journal / "head.json"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints, unless the sweep stores them elsewhere."""
        return self.path / "checkpoints"

    @property
    def spools(self) -> Path:
        """Folder for the workers' messages."""
        return self.path / "spools"

    @property
    def control(self) -> Path:
        """Folder for requests to the head."""
        return self.path / "control"

    @property
    def followers(self) -> Path:
        """Folder for the positions of followers in the journal."""
        return self.path / "followers"

    def checkpoint(self, trial: str, iteration: int, attempt: int) -> Path:
        """Return the folder of a checkpoint."""
        return self.checkpoints / trial / checkpoint_name(iteration, attempt)

    def trial(self, trial: str) -> Path:
        """Return a trial's own folder."""
        return self.path / "trials" / trial


def checkpoint_name(iteration: int, attempt: int) -> str:
    """Return the last part of the path of a checkpoint."""
    return f"{iteration:06d}-{attempt}"
