"""Trial of a sweep as the controller stores it (under 1 kB without its configuration)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["ANONYMOUS_METRIC", "ONE_CPU", "Metrics", "Resources", "SavedState", "Trial", "TrialStatus"]

Metrics = dict[str, Any]
"""Reported metrics, flat (`a/b` for nested names), JSON values only; NaN and infinities are floats."""


ANONYMOUS_METRIC = "_metric"
"""Metric of a function that returns or yields plain numbers."""


class TrialStatus(StrEnum):
    """Status of a trial, using Ray Tune's names.

    Attributes:
        is_over: whether the trial has ended.
    """

    is_over: bool

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    TERMINATED = "TERMINATED"
    ERROR = "ERROR"

    def __init__(self, word: str) -> None:
        self.is_over = word in ("TERMINATED", "ERROR")  # not a property, as every report reads it

    __hash__ = str.__hash__  # faster than the hash of enums; trials are counted by status


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Resources for a trial: one bundle per worker, of which the first is for the trial's own process.

    Attributes:
        bundles: each maps `CPU`, `GPU`, `memory` (bytes) or a custom name to an amount; fractions are allowed.
        strategy: placement of bundles on nodes: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD.
    """

    bundles: tuple[dict[str, float], ...] = ({"CPU": 1.0},)
    strategy: str = "PACK"

    def __hash__(self) -> int:
        return hash((self.strategy, *(frozenset(bundle.items()) for bundle in self.bundles)))

    @property
    def head_cpus(self) -> float:
        """Number of CPUs in the first bundle, which is for the trial's own process."""
        return self.bundles[0].get("CPU", 0.0)

    @property
    def head_bundle_is_empty(self) -> bool:
        """True if the trial's main process needs no resources."""
        return not self.bundles[0]

    @property
    def required_resources(self) -> dict[str, float]:
        """Sum of all bundles, under Ray Tune's name."""
        return self.total

    @property
    def total(self) -> dict[str, float]:
        """Sum of all bundles."""
        total: dict[str, float] = {}
        for bundle in self.bundles:
            for name, amount in bundle.items():
                total[name] = total.get(name, 0.0) + amount
        return total


ONE_CPU = Resources()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedState:
    """Checkpoint of a trial, either committed or requested and not committed yet.

    Attributes:
        trial: id of the trial that made it; a clone in population based training refers to another trial's.
        iteration: `training_iteration` at which it was made.
        path: a folder or a URL; empty until it is committed.
    """

    trial: str
    iteration: int
    path: str = ""


@dataclass(slots=True, kw_only=True)
class Trial:
    """State of a trial in the controller, changed only by the controller's core.

    Attributes:
        id: its number in five digits (more above 99,999), in the order in which trials were suggested.
        config: the resolved configuration, nested as the space is.
        assigned: the values that were drawn, flat: `{"model/layers": 4}`; what tables and searchers show.
        tag: its origin, such as `3@perturbed[lr=0.01]`; empty for a plain trial.
        attempt: number of its newest start; reports of older attempts are dropped.
        iteration: `training_iteration` of the newest report that counted.
        last: metrics of that report, with `training_iteration` and `time_total_s`.
        best: the best value of the sweep's first metric so far; None before the first.
        checkpoint: the newest committed one.
        restore_from: checkpoint that the next start loads; None starts from scratch.
        place: host, or slot, of the newest attempt that started.
        num_failures: attempts that ended by the trial's own error.
        num_interruptions: attempts that ended with their worker or node.
        why: reason of the newest decision that changed its status, or of its waiting.
        error: the newest traceback; empty without.
    """

    id: str
    number: int
    config: dict[str, Any]
    assigned: dict[str, Any] = field(default_factory=dict)
    resources: Resources = ONE_CPU
    status: TrialStatus = TrialStatus.PENDING
    tag: str = ""
    attempt: int = 0
    iteration: int = 0
    last: Metrics | None = None
    best: float | None = None
    checkpoint: SavedState | None = None
    restore_from: SavedState | None = None
    place: str = ""
    num_failures: int = 0
    num_interruptions: int = 0
    why: str = ""
    error: str = ""
