"""Parser of durations as gantry writes them: `1h30m`, `2 hours`, `2d`, `90` (seconds)."""

from __future__ import annotations

from windlass.core.errors import UsageError
from windlass.plan.beaker.quantities import NS_PER_S, parse_duration_ns

__all__ = ["to_nanoseconds", "to_seconds"]


def to_nanoseconds(option: str, text: str) -> int:
    """Return the value of an option in nanoseconds.

    Raises:
        UsageError: it is not a duration, or exceeds Beaker's 64 bits.
    """
    try:
        return parse_duration_ns(text, knows_days=True)
    except ValueError as error:
        message = f"`{option} {text}` is not a valid duration: {error}"
        raise UsageError(message, hint=f"write for example `{option} 1h30m`", code="invalid-value") from None


def to_seconds(option: str, text: str) -> float:
    """Return the value of an option in seconds; raises the same errors as `to_nanoseconds`."""
    return to_nanoseconds(option, text) / NS_PER_S
