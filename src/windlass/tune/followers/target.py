"""Target of a follower: gets the events of trials, in order, in batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from windlass.tune.controller.journal.history import TrialHistory
from windlass.tune.folder import SweepFolder
from windlass.tune.results.columns import NestedMetrics

__all__ = ["FileTarget", "FollowedSweep", "Pieces", "Target", "plain_values", "trial_path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedSweep:
    """Sweep that is followed; `trainable` is its display name."""

    name: str
    folder: SweepFolder
    trainable: str = ""


class Target:
    """Kind of writer; override what matters.

    A batch may be repeated, from the same record on, after a follower died in it: a target must be
    idempotent, or undone by `FileTarget`.
    """

    name: ClassVar[str]

    def open(self, sweep: FollowedSweep) -> None:
        """Open; called once, before anything else.

        Raises:
            WindlassError: what it needs is not installed or not set.
        """

    def started(self, trial: TrialHistory) -> None:
        """Called when an attempt of a trial started."""

    def configured(self, trial: TrialHistory) -> None:
        """Called when a trial took over the configuration of another."""

    def reported(self, trial: TrialHistory, result: NestedMetrics, number: int, at: float) -> None:
        """Called for a report; `number` counts the trial's reports from 1, `at` is wall time in seconds."""

    def saved(self, trial: TrialHistory, path: str) -> None:
        """Called when a checkpoint of a trial was committed."""

    def ended(self, trial: TrialHistory, *, is_failed: bool) -> None:
        """Called when a trial is over."""

    def flush(self) -> None:
        """Finish a batch: all of it must be written now."""

    def close(self, *, is_over: bool) -> None:
        """Close; `is_over` if the sweep has ended too."""


@dataclass(slots=True)
class Pieces:
    """Bytes that a batch adds to files, by path below the sweep's folder."""

    appended: dict[str, list[bytes]] = field(default_factory=dict)
    replaced: dict[str, bytes] = field(default_factory=dict)

    def append(self, path: str, content: bytes) -> None:
        """Add bytes to a file's end."""
        self.appended.setdefault(path, []).append(content)

    def replace(self, path: str, content: bytes) -> None:
        """Write a whole file."""
        self.replaced[path] = content


class FileTarget(Target):
    """A target that only adds bytes to files below the sweep's folder; the follower writes them exactly once.

    Attributes:
        pieces: bytes that the current batch adds.
        patterns: the files it owns, as globs below the sweep's folder; removed when it begins from the beginning.
    """

    patterns: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.pieces = Pieces()
        self.sweep: FollowedSweep | None = None

    def open(self, sweep: FollowedSweep) -> None:
        """See `Target`."""
        self.sweep = sweep

    def read_head(self, path: str) -> bytes:
        """Return the first line of one of its files, as earlier batches wrote it; empty if missing."""
        assert self.sweep is not None
        try:
            with open(Path(self.sweep.folder.path, path), "rb") as file:
                return file.readline()
        except FileNotFoundError:
            return b""

    def begun(self, path: str) -> bool:
        """Return whether a file has content, of this batch or of earlier ones."""
        return path in self.pieces.appended or bool(self.read_head(path))

    def take_pieces(self) -> Pieces:
        """Take the batch."""
        pieces, self.pieces = self.pieces, Pieces()
        return pieces


def trial_path(trial: TrialHistory, name: str) -> str:
    """Return the path of a file in a trial's own folder."""
    return f"trials/{trial.id}/{name}"


def plain_values(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among flat values; booleans are numbers, as in Ray Tune's loggers."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
