"""Bundles of GPUs and CPUs that a task's own scheduler assigns (Ray placement groups)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from windlass.config.annotations import Diagnostic, Doc
from windlass.core.dataclass import dataclass

__all__ = ["Bundle", "Number"]

_EXPRESSION = re.compile(r"\$\{[^{}]+\}")

Number: TypeAlias = int | str
"""Whole number, or an expression of the task's shape and parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """Number of equal bundles of GPUs and CPUs, each on one node; `plan` checks that they fit."""

    count: Annotated[Number, Doc("Number of bundles, such as `${num_gpus - 2 * nodes}`.")] = 1
    gpus: Annotated[Number, Doc("GPUs per bundle, such as the tensor-parallel size.")] = 0
    cpus: Annotated[Number, Doc("CPUs per bundle.")] = 0
    strategy: Annotated[
        Literal["pack", "spread", "strict-pack", "strict-spread"],
        Doc("Placement: `strict-pack` on one node, `strict-spread` on as many nodes as there are bundles."),
    ] = "pack"

    def check(self) -> Iterator[Diagnostic]:
        """Yield problems that the types of the fields do not catch."""
        for key in ("count", "gpus", "cpus"):
            value = getattr(self, key)
            if isinstance(value, str) and not _EXPRESSION.fullmatch(value):
                hint = "write a number, or calculate it: `${2 * nodes}`"
                yield key, f"`{value}` is neither a whole number nor one expression", "invalid-value", hint
            elif isinstance(value, int) and value < 0:
                yield key, f"{value} is too small", "invalid-value", "write a number from 0, or an expression"
        if self.gpus == 0 and self.cpus == 0:
            yield "", "the bundle requests neither GPUs nor CPUs", "invalid-value", "write `gpus: 1`, or remove it"
