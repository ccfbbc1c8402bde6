"""What a follower writes to: it is told what happened to trials, in order, batch by batch."""

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
    """The sweep that is followed; `trainable` is its name for people."""

    name: str
    folder: SweepFolder
    trainable: str = ""


class Target:
    """One kind of writer; override what matters.

    A batch may be told again, from the same record on, after a follower died in it: what a target does must be
    idempotent, or undone by `FileTarget`.
    """

    name: ClassVar[str]

    def open(self, sweep: FollowedSweep) -> None:
        """Begin; called once, before anything else.

        Raises:
            WindlassError: what it needs is not installed or not set.
        """

    def started(self, trial: TrialHistory) -> None:
        """An attempt of a trial runs."""

    def configured(self, trial: TrialHistory) -> None:
        """A trial has another configuration: it took over another one."""

    def reported(self, trial: TrialHistory, result: NestedMetrics, number: int, at: float) -> None:
        """A trial reported; `number` counts its reports from 1, `at` is wall time in seconds."""

    def saved(self, trial: TrialHistory, path: str) -> None:
        """A checkpoint of a trial is committed."""

    def ended(self, trial: TrialHistory, *, is_failed: bool) -> None:
        """A trial is over."""

    def flush(self) -> None:
        """The batch is over: everything told is to be where it belongs."""

    def close(self, *, is_over: bool) -> None:
        """The follower ends; `is_over` when the sweep has ended too."""


@dataclass(slots=True)
class Pieces:
    """What a batch adds to files, by path below the sweep's folder."""

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
        pieces: what the batch at hand adds.
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
        """The first line of one of its files, or nothing; of what earlier batches wrote."""
        assert self.sweep is not None
        try:
            with open(Path(self.sweep.folder.path, path), "rb") as file:
                return file.readline()
        except FileNotFoundError:
            return b""

    def begun(self, path: str) -> bool:
        """Whether a file has content, of this batch or of earlier ones."""
        return path in self.pieces.appended or bool(self.read_head(path))

    def take_pieces(self) -> Pieces:
        """Hand over the batch."""
        pieces, self.pieces = self.pieces, Pieces()
        return pieces


def trial_path(trial: TrialHistory, name: str) -> str:
    """A file in a trial's own folder."""
    return f"trials/{trial.id}/{name}"


def plain_values(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers among flat values; booleans are numbers, as in Ray Tune's loggers."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
