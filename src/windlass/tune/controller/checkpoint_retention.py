"""Which checkpoints stay: each trial's best ones and newest one, and what any trial still would restore from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windlass.tune.controller.settings import RetentionPolicy
from windlass.tune.trial import SavedState

__all__ = ["CheckpointRetention"]


@dataclass(slots=True)
class _Kept:
    saved: SavedState
    score: float
    seconds: float


class CheckpointRetention:
    """The committed checkpoints of all trials. Pure: it says what to drop, somebody else drops it."""

    __slots__ = ("_kept", "_refs", "keep")

    def __init__(self, keep: RetentionPolicy) -> None:
        self.keep = keep
        self._kept: dict[str, list[_Kept]] = {}
        self._refs: dict[str, int] = {}

    def add(self, saved: SavedState, metrics: Mapping[str, Any] | None) -> Sequence[SavedState]:
        """A new one is committed, with the metrics of its iteration if they are known; returns what is to be dropped."""
        kept = self._kept.setdefault(saved.trial, [])
        if kept and kept[-1].saved.path == saved.path:
            return ()
        kept.append(_Kept(saved, self._score(saved, metrics), _seconds(metrics)))
        return self._surplus(saved.trial)

    def learn(self, trial: str, iteration: int, metrics: Mapping[str, Any]) -> None:
        """The report of a checkpoint's iteration came after the checkpoint."""
        kept = self._kept.get(trial)
        if kept and kept[-1].saved.iteration == iteration:
            kept[-1].score = self._score(kept[-1].saved, metrics)
            kept[-1].seconds = _seconds(metrics)

    def seconds_at(self, saved: SavedState) -> float:
        """`time_total_s` of a checkpoint's iteration; 0 where it is not known."""
        kept = self._kept.get(saved.trial, ())
        return next((entry.seconds for entry in kept if entry.saved.path == saved.path), 0.0)

    def find(self, wanted: SavedState) -> SavedState | None:
        """A committed checkpoint: this one, or that of the same iteration, else the trial's newest; None: it has none."""
        kept = self._kept.get(wanted.trial)
        if not kept:
            return None
        same = [entry.saved for entry in kept if entry.saved.path == wanted.path]
        same = same or [entry.saved for entry in kept if entry.saved.iteration == wanted.iteration]
        return same[-1] if same else kept[-1].saved

    def has_scores(self, trial: str) -> bool:
        """Whether any checkpoint of a trial that is there has a score."""
        return any(entry.score > -math.inf for entry in self._kept.get(trial, ()))

    def hold(self, saved: SavedState | None) -> None:
        """Some trial will restore from it."""
        if saved is not None and saved.path:
            self._refs[saved.path] = self._refs.get(saved.path, 0) + 1

    def release(self, saved: SavedState | None) -> Sequence[SavedState]:
        """That trial will not any more; returns what is to be dropped now."""
        if saved is None or not saved.path:
            return ()
        num_refs = self._refs[saved.path] - 1
        if num_refs:
            self._refs[saved.path] = num_refs
            return ()
        del self._refs[saved.path]
        return self._surplus(saved.trial)

    def _score(self, saved: SavedState, metrics: Mapping[str, Any] | None) -> float:
        """More is better; minus infinity where there is no score."""
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
