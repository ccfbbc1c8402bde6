"""Length of training, in steps, tokens or epochs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from windlass.config import Doc, Range

__all__ = ["Duration"]

_FORM = re.compile(r"\s*([0-9][0-9_]*)(?:\.([0-9]+))?(?:[eE][+]?([0-9]{1,2}))?\s*(step|token|epoch)s?\s*")
_UNITS: dict[str, Literal["steps", "tokens", "epochs"]] = {"step": "steps", "token": "tokens", "epoch": "epochs"}
_MAX = 10**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """Length of training: `100steps`, `5e9 tokens`, `2 epochs`, or `{value: 100, unit: steps}`."""

    UNITS: ClassVar[tuple[str, ...]] = ("steps", "tokens", "epochs")

    value: Annotated[int, Range(min=0), Doc("Number of units.")]
    unit: Annotated[Literal["steps", "tokens", "epochs"], Doc("Unit of length.")]

    @classmethod
    def from_shorthand(cls, value: str) -> Duration:
        """Parse `100steps`; raise ValueError with the accepted forms."""
        match = _FORM.fullmatch(value)
        if match is not None:
            whole, part, power = match[1].replace("_", ""), (match[2] or "").rstrip("0"), int(match[3] or 0)
            # Only integers: floats cannot represent 1.1e18 tokens exactly.
            count = int(whole + part) * 10 ** (power - len(part)) if power >= len(part) else _MAX
            if count < _MAX:
                return cls(value=count, unit=_UNITS[match[4]])
        raise ValueError("write a whole number and its unit, such as `100steps`, `5e9 tokens` or `2 epochs`")

    @classmethod
    def steps(cls, value: int) -> Duration:
        """Return a length in optimiser steps."""
        return cls(value=value, unit="steps")

    @classmethod
    def tokens(cls, value: int) -> Duration:
        """Return a length in tokens, including padding."""
        return cls(value=value, unit="tokens")

    @classmethod
    def epochs(cls, value: int) -> Duration:
        """Return a length in passes over the data."""
        return cls(value=value, unit="epochs")

    def __str__(self) -> str:
        return f"{self.value} {self.unit}"
