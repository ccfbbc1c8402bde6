"""A sweep's folder: what lies where. Names of all but what `sweep` and one kind of executor keep.

<storage_path>/<name>/
    journal/head.wj                              the sweep: everything else can be read off it
    journal/head.json                            which process holds the lease, for people
    checkpoints/<trial>/<iteration>-<attempt>/   committed by their manifest
    trials/<trial>/                              what a trial writes by itself; made when it does
    spools/                                      what workers said while no head listened
    control/                                     requests to the head from other processes
    followers/                                   how far each follower has come, and what it said
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["HEAD", "SweepFolder", "checkpoint_name"]

HEAD = "head"


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """The paths of one sweep; makes nothing."""

    path: Path

    @property
    def journal(self) -> Path:
        """Folder of the journal; holds the head's file alone."""
        return self.path / "journal"

    @property
    def head_journal(self) -> Path:
        """The journal; its lock is the head's lease."""
        return self.journal / "head.wj"

    @property
    def head_note(self) -> Path:
        """Host and process of the head, for the message that a second one gets."""
        return self.journal / "head.json"

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints lie unless the sweep stores them elsewhere."""
        return self.path / "checkpoints"

    @property
    def spools(self) -> Path:
        """Workers' own files of what they said."""
        return self.path / "spools"

    @property
    def control(self) -> Path:
        """Requests to the head."""
        return self.path / "control"

    @property
    def followers(self) -> Path:
        """How far each follower has come."""
        return self.path / "followers"

    def checkpoint(self, trial: str, iteration: int, attempt: int) -> Path:
        """The folder of one checkpoint."""
        return self.checkpoints / trial / checkpoint_name(iteration, attempt)

    def trial(self, trial: str) -> Path:
        """A trial's own folder."""
        return self.path / "trials" / trial


def checkpoint_name(iteration: int, attempt: int) -> str:
    """The last part of a checkpoint's path."""
    return f"{iteration:06d}-{attempt}"
