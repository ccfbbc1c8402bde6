"""Retention of a run's files after its end, enforced by `windlass gc --yes`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from windlass.config.annotations import Diagnostic, Doc, DurationText, Range
from windlass.core.dataclass import dataclass

__all__ = ["Best", "KeptCheckpoints", "Retain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """Best checkpoints by a reported metric."""

    metric: Annotated[str, Doc("Name of a metric that the code reports, such as `loss`.")]
    mode: Annotated[Literal["min", "max"], Doc("Best values: the smallest or the largest.")] = "min"
    keep: Annotated[int, Range(min=1), Doc("Number of checkpoints to keep.")] = 1

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        if not self.metric:
            yield "metric", "`metric` is empty", "invalid-value", "write the name of a metric, such as `loss`"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoints:
    """Checkpoints of each task to keep; all others are deleted."""

    last: Annotated[int | None, Range(min=1), Doc("Number of newest checkpoints to keep.")] = None
    best: Annotated[Best | None, Doc("Checkpoints with the best values of a metric.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retain:
    """Rules of `windlass gc --yes` for a finished run; without a rule everything is kept."""

    ttl: Annotated[
        float | None, DurationText(), Range(min=1), Doc("Time after the end of a run when all its files are deleted.")
    ] = None
    checkpoints: Annotated[KeptCheckpoints, Doc("Checkpoints to keep.")] = KeptCheckpoints()
