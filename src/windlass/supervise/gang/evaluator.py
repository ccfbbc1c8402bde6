"""Choice of the next checkpoint, for the leader of a task that evaluates checkpoints of another one.

The decisions are `windlass.record.evaluation`'s; this adds what is on disk: the files, their digest, the metrics.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from windlass.core.errors import WindlassError
from windlass.record import events
from windlass.record.evaluation import (
    NextEvaluation,
    best_checkpoint,
    next_evaluation,
    published_checkpoints,
    read_values,
)
from windlass.record.facts import SavedCheckpoint, TaskFacts
from windlass.record.manifest import read_manifest
from windlass.record.retry import Budgets
from windlass.record.state import State
from windlass.supervise.gang.messages import Journal
from windlass.supervise.job import JobDocument

__all__ = ["Evaluator"]

_EVERY_S = 5.0


class Evaluator:
    """Chooser of checkpoints for one task; restarted leaders make the same choices from the journal."""

    def __init__(self, job: JobDocument) -> None:
        assert job.settings.evaluates is not None  # the leader has checked that the task evaluates
        self._rule, self._task = job.settings.evaluates, job.task
        self._budgets = Budgets(job.settings.interrupted, job.settings.failed)
        self._run_dir = Path(job.paths.run_dir)
        self._entries = Path(job.paths.checkpoints).parent / self._rule.of
        self._best: tuple[SavedCheckpoint | None] | None = None
        self._looked_at = float("-inf")

    def is_due(self, now: float) -> bool:
        """Return whether `look` is due although nothing waits for it; true every 5 s."""
        if now < self._looked_at + _EVERY_S:
            return False
        self._looked_at = now
        return True

    def look(self, journal: Journal) -> NextEvaluation:
        """Return what the task does next, after recording the checkpoints that it skips."""
        while True:
            task, trained = journal.facts.task(self._task), journal.facts.task(self._rule.of)
            task.evaluates = self._rule  # also in a journal whose first record is not read yet
            chosen = next_evaluation(task, trained, self._budgets, self._best_of(trained))
            reason = f"more than {self._rule.max_waiting} checkpoints waited"
            for checkpoint in chosen.skipped:
                self._skip(journal, checkpoint, reason)
            if not chosen.checkpoint.path or self._exists(chosen.checkpoint):
                return chosen
            self._skip(journal, chosen.checkpoint, "its files are gone")

    def _best_of(self, trained: TaskFacts) -> SavedCheckpoint | None:
        """Return the best checkpoint, once the task has succeeded; its metrics are then complete."""
        if not self._rule.best or trained.state is not State.SUCCEEDED:
            return None
        if self._best is None:
            values = read_values(self._run_dir / "journal", self._rule.of, self._rule.best)
            self._best = (best_checkpoint(published_checkpoints(trained), values, self._rule.mode),)
        return self._best[0]

    def _skip(self, journal: Journal, checkpoint: SavedCheckpoint, reason: str) -> None:
        journal.append(events.EVALUATION_SKIPPED, path=checkpoint.path, step=checkpoint.step, reason=reason)
        journal.poll()

    def _exists(self, checkpoint: SavedCheckpoint) -> bool:
        return "://" in checkpoint.path or os.path.exists(self._path(checkpoint))

    def _path(self, checkpoint: SavedCheckpoint) -> Path:
        """Return the absolute path of a checkpoint; that of an entry is relative."""
        return self._entries / checkpoint.path

    def start_of(self, checkpoint: SavedCheckpoint) -> dict[str, str | int]:
        """Return the path, step and digest of a checkpoint, for the record of the attempt that evaluates it."""
        found: dict[str, str | int] = {"path": checkpoint.path, "step": checkpoint.step, "digest": ""}
        if "://" not in checkpoint.path:
            with contextlib.suppress(OSError, WindlassError):  # code that saves by itself writes no manifest
                found["digest"] = read_manifest(self._path(checkpoint)).digest
        return found
