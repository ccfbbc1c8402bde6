"""What of a run stays after it ended, and for how long: rules that `windlass gc --yes` carries out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from windlass.config import Diagnostic, Doc, DurationText, Range
from windlass.core.dataclass import dataclass

__all__ = ["Best", "KeptCheckpoints", "Retain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The checkpoints where a reported metric was best."""

    metric: Annotated[str, Doc("Name of a metric that the code reports, such as `loss`.")]
    mode: Annotated[Literal["min", "max"], Doc("Which values are good: the smallest or the largest.")] = "min"
    keep: Annotated[int, Range(min=1), Doc("How many of them stay.")] = 1

    def check(self) -> Iterator[Diagnostic]:
        """What no single field can see."""
        if not self.metric:
            yield "metric", "`metric` is empty", "wrong-value", "write the name of a metric, such as `loss`"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoints:
    """Which checkpoints of each task stay; all others go."""

    last: Annotated[int | None, Range(min=1), Doc("The newest so many.")] = None
    best: Annotated[Best | None, Doc("Those where a metric was best.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retain:
    """What `windlass gc --yes` removes of a run that ended; without a rule everything stays."""

    ttl: Annotated[float | None, DurationText(), Range(min=1), Doc("The whole run goes so long after its end.")] = None
    checkpoints: Annotated[KeptCheckpoints, Doc("Which checkpoints stay.")] = KeptCheckpoints()
