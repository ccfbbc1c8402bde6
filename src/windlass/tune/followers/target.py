"""Target of a follower, which receives the events of trials in order and in batches; and the targets by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from windlass.tune.controller.journal.history import TrialHistory
from windlass.tune.errors import BadValueError
from windlass.tune.folder import SweepFolder
from windlass.tune.results.columns import NestedMetrics

__all__ = ["TARGETS", "FileTarget", "FollowedSweep", "Pieces", "Target", "make_target", "plain_values", "trial_path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedSweep:
    """Sweep that a follower reads; `trainable` is the name to display."""

    name: str
    folder: SweepFolder
    trainable: str = ""


class Target:
    """Base class for targets; override the methods that you need.

    If a follower dies in a batch, the batch is repeated from the same record, so a target must be idempotent, or be
    undone by `FileTarget`.
    """

    name: ClassVar[str]

    def open(self, sweep: FollowedSweep) -> None:
        """Open the target. Called once, before anything else.

        Raises:
            WindlassError: a required library is not installed, or a setting is missing.
        """

    def started(self, trial: TrialHistory) -> None:
        """Called when an attempt of a trial has started."""

    def configured(self, trial: TrialHistory) -> None:
        """Called when a trial has taken over the configuration of another trial."""

    def reported(self, trial: TrialHistory, result: NestedMetrics, number: int, at: float) -> None:
        """Called for each report; `number` counts the trial's reports from 1, and `at` is the wall time in seconds."""

    def saved(self, trial: TrialHistory, path: str) -> None:
        """Called when a checkpoint of a trial has been committed."""

    def ended(self, trial: TrialHistory, *, is_failed: bool) -> None:
        """Called when a trial has ended."""

    def flush(self) -> None:
        """Finish a batch, all of which must be written on return."""

    def close(self, *, is_over: bool) -> None:
        """Close the target; `is_over` says whether the sweep has ended."""


@dataclass(slots=True)
class Pieces:
    """Bytes that a batch adds to files, by path relative to the sweep's folder."""

    appended: dict[str, list[bytes]] = field(default_factory=dict)
    replaced: dict[str, bytes] = field(default_factory=dict)

    def append(self, path: str, content: bytes) -> None:
        """Append bytes to a file."""
        self.appended.setdefault(path, []).append(content)

    def replace(self, path: str, content: bytes) -> None:
        """Replace the content of a file."""
        self.replaced[path] = content


class FileTarget(Target):
    """Target that only adds bytes to files in the sweep's folder, which the follower writes exactly once.

    Attributes:
        pieces: bytes that the current batch adds.
        patterns: globs of its files in the sweep's folder, which are removed when it starts from the beginning.
    """

    patterns: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.pieces = Pieces()
        self.sweep: FollowedSweep | None = None

    def open(self, sweep: FollowedSweep) -> None:
        """Record the sweep; see `Target.open`."""
        self.sweep = sweep

    def read_head(self, path: str) -> bytes:
        """Return the first line that earlier batches wrote to a file, or nothing if the file is missing."""
        assert self.sweep is not None
        try:
            with open(Path(self.sweep.folder.path, path), "rb") as file:
                return file.readline()
        except FileNotFoundError:
            return b""

    def begun(self, path: str) -> bool:
        """Return whether a file has content from this batch or earlier ones."""
        return path in self.pieces.appended or bool(self.read_head(path))

    def take_pieces(self) -> Pieces:
        """Return the batch and clear it."""
        pieces, self.pieces = self.pieces, Pieces()
        return pieces


def trial_path(trial: TrialHistory, name: str) -> str:
    """Return the path of a file in the folder of a trial."""
    return f"trials/{trial.id}/{name}"


def plain_values(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers among flat values; booleans count as numbers, as in Ray Tune's loggers."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}


TARGETS = {
    "csv": "windlass.tune.followers.files:CSVTarget",
    "json": "windlass.tune.followers.files:JSONTarget",
    "tensorboard": "windlass.tune.followers.files:TensorBoardTarget",
    "wandb": "windlass.tune.followers.wandb_runs:WandbTarget",
    "mlflow": "windlass.tune.followers.mlflow_runs:MLflowTarget",
}


def make_target(name: str, options: Mapping[str, Any]) -> Target:
    """Create the target with a name.

    Raises:
        UsageError: the name is unknown, or the target does not take an option (`unknown-name`).
    """
    if name not in TARGETS:
        raise BadValueError(f"unknown follower {name!r}", hint=f"one of {', '.join(TARGETS)}", code="unknown-name")
    module, _, attribute = TARGETS[name].partition(":")
    try:
        target = getattr(importlib.import_module(module), attribute)(**options)
    except TypeError as error:
        raise BadValueError(
            f"the follower {name!r} does not take these options: {error}",
            hint="see the arguments of its class in windlass.tune.followers",
            code="unknown-name",
        ) from error
    assert isinstance(target, Target)
    return target
