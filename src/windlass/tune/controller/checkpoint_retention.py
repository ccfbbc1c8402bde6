"""Retention of checkpoints: the best and the newest of each trial, and those that a trial will restore from."""

from __future__ import annotations

import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.tune.controller.settings import RetentionPolicy
from windlass.tune.trial import SavedState

__all__ = ["CheckpointRetention", "Deletion"]


@dataclass(slots=True)
class _Kept:
    saved: SavedState
    score: float
    seconds: float


class CheckpointRetention:
    """Committed checkpoints of all trials. Pure: it returns what is to be deleted, and deletes nothing itself."""

    __slots__ = ("_kept", "_refs", "keep")

    def __init__(self, keep: RetentionPolicy) -> None:
        self.keep = keep
        self._kept: dict[str, list[_Kept]] = {}
        self._refs: dict[str, int] = {}

    def add(self, saved: SavedState, metrics: Mapping[str, Any] | None) -> Sequence[SavedState]:
        """Add a committed checkpoint with the metrics of its iteration, if known; return the checkpoints to delete."""
        kept = self._kept.setdefault(saved.trial, [])
        if kept and kept[-1].saved.path == saved.path:
            return ()
        kept.append(_Kept(saved, self._score(saved, metrics), _seconds(metrics)))
        return self._surplus(saved.trial)

    def learn(self, trial: str, iteration: int, metrics: Mapping[str, Any]) -> None:
        """Score a checkpoint whose report arrived after it."""
        kept = self._kept.get(trial)
        if kept and kept[-1].saved.iteration == iteration:
            kept[-1].score = self._score(kept[-1].saved, metrics)
            kept[-1].seconds = _seconds(metrics)

    def seconds_at(self, saved: SavedState) -> float:
        """Return `time_total_s` at the iteration of a checkpoint, or 0 if unknown."""
        kept = self._kept.get(saved.trial, ())
        return next((entry.seconds for entry in kept if entry.saved.path == saved.path), 0.0)

    def find(self, wanted: SavedState) -> SavedState | None:
        """Return this checkpoint, one from the same iteration, or the trial's newest; None if the trial has none."""
        kept = self._kept.get(wanted.trial)
        if not kept:
            return None
        same = [entry.saved for entry in kept if entry.saved.path == wanted.path]
        same = same or [entry.saved for entry in kept if entry.saved.iteration == wanted.iteration]
        return same[-1] if same else kept[-1].saved

    def has_scores(self, trial: str) -> bool:
        """Return whether any kept checkpoint of a trial has a score."""
        return any(entry.score > -math.inf for entry in self._kept.get(trial, ()))

    def hold(self, saved: SavedState | None) -> None:
        """Protect a checkpoint that a trial will restore from."""
        if saved is not None and saved.path:
            self._refs[saved.path] = self._refs.get(saved.path, 0) + 1

    def release(self, saved: SavedState | None) -> Sequence[SavedState]:
        """Undo one call of `hold`; return the checkpoints that can now be deleted."""
        if saved is None or not saved.path:
            return ()
        num_refs = self._refs[saved.path] - 1
        if num_refs:
            self._refs[saved.path] = num_refs
            return ()
        del self._refs[saved.path]
        return self._surplus(saved.trial)

    def _score(self, saved: SavedState, metrics: Mapping[str, Any] | None) -> float:
        """Return the score of a checkpoint; higher is better, and minus infinity stands for no score."""
        if not self.keep.score_attribute:
            return float(saved.iteration)
        value = (metrics or {}).get(self.keep.score_attribute)
        if not isinstance(value, (int, float)) or math.isnan(value):
            return -math.inf
        return float(value) if self.keep.order == "max" else -float(value)

    def _surplus(self, trial: str) -> Sequence[SavedState]:
        kept = self._kept.get(trial, [])
        if self.keep.num_to_keep is None or len(kept) <= self.keep.num_to_keep:
            return ()
        ranked = sorted(range(len(kept)), key=lambda place: (kept[place].score, place), reverse=True)
        stays = {*ranked[: self.keep.num_to_keep], len(kept) - 1}
        drops = [p for p in range(len(kept)) if p not in stays and kept[p].saved.path not in self._refs]
        found = [kept[place].saved for place in drops]
        for place in reversed(drops):
            del kept[place]
        return found


def _seconds(metrics: Mapping[str, Any] | None) -> float:
    value = (metrics or {}).get("time_total_s", 0.0)
    return float(value) if isinstance(value, (int, float)) else 0.0


_NUM_PROBLEMS = 8


class Deletion:
    """Background thread that deletes checkpoints, because deleting a large folder can take seconds.

    Args:
        drop: deletes a checkpoint by path or URL; a missing one is no error. None: `windlass.tune.storage.delete`.

    Attributes:
        problems: the most recent failed deletions, with reasons; they only waste disk space.
    """

    def __init__(self, drop: Callable[[str], None] | None = None) -> None:
        self._drop = drop
        self._paths: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.problems: deque[str] = deque(maxlen=_NUM_PROBLEMS)

    def take(self, paths: Iterable[str]) -> None:
        """Queue these checkpoints for deletion."""
        for path in paths:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="windlass-deletion", daemon=True)
                self._thread.start()
            self._paths.put(path)

    def close(self) -> None:
        """Wait until all queued checkpoints have been deleted."""
        if self._thread is not None:
            self._paths.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        drop = self._drop
        if drop is None:
            from windlass.tune.storage import delete  # lazy: most sweeps delete nothing

            drop = delete
        while (path := self._paths.get()) is not None:
            try:
                drop(path)
            except Exception as error:  # noqa: BLE001 - any error of a storage library
                self.problems.append(f"{path}: {error}")
