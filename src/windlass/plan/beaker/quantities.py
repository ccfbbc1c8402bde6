"""Durations and sizes as Beaker's spec and Beaker's tools write them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal

__all__ = ["NS_PER_S", "duration_text", "parse_duration_ns", "parse_size_bytes", "seconds_of", "size_text"]

NS_PER_S = 1_000_000_000
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([a-z\u00b5\u03bc]*)")
_UNITS_NS = {
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1),
    **dict.fromkeys(("us", "\u00b5s", "\u03bcs", "microsecond", "microseconds"), 1_000),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1_000_000),
    **dict.fromkeys(("", "s", "sec", "second", "seconds"), NS_PER_S),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60 * NS_PER_S),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600 * NS_PER_S),
}
_DAY_NS = 86_400 * NS_PER_S
_MOST_NS = 2**63 - 1
_SIZE = re.compile(r"(-?)(\d+(?:\.\d*)?|\.\d+) ?([kmgtpe]?)(ib|b|)\Z", re.IGNORECASE)
_POWERS = "kmgtpe"
_MAX_EXACT = 2**53


def parse_duration_ns(value: str | float, *, knows_days: bool = False) -> int:
    """Parse `1h30m`, a quoted `90` (seconds) or a bare number (nanoseconds); return nanoseconds.

    Args:
        knows_days: also accept `2d`, which Beaker does not.

    Raises:
        ValueError: the text is invalid (the message gives the accepted form), or exceeds 64 bits.
    """
    if isinstance(value, int | float):
        return int(value)
    text, total, position = value.replace(" ", "").lower(), 0, 0
    while position < len(text) or not text:
        match = _PART.match(text, position)
        unit = match.group(2) if match is not None else "?"
        unit_ns = _UNITS_NS.get(unit) or (_DAY_NS if knows_days and unit in ("d", "day", "days") else None)
        if match is None or unit_ns is None:
            raise ValueError('a duration is written as `1h30m`, `90s`, or `"90"` for seconds')
        total += int(Decimal(match.group(1)) * unit_ns)
        position = match.end()
    if total > _MOST_NS:
        raise ValueError("a duration is at most 292 years")
    return total


def duration_text(seconds: float) -> str:
    """Format a duration such as `1h30m` for 5400; Beaker does not accept days."""
    milliseconds, parts = round(seconds * 1000), []
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts) or "0s"


def seconds_of(value: object) -> float | None:
    """Parse a duration and return its seconds; None if it is below 1 s or not in whole milliseconds."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    nanoseconds = parse_duration_ns(value)
    milliseconds, rest = divmod(nanoseconds, 1_000_000)
    return milliseconds / 1000 if not rest and 1000 <= milliseconds < _MAX_EXACT else None


def parse_size_bytes(text: str) -> int:
    """Parse a size such as `2.5GiB` or `10.24gb` and return its bytes; units without `i` are powers of 1000.

    Raises:
        ValueError: the text is invalid; the message gives the accepted form.
    """
    match = _SIZE.match(text)
    if match is None or (match.group(4).lower() == "ib" and not match.group(3)):
        raise ValueError("a size is written as `2.5GiB`, `512MiB` or `10.24gb`")
    base = 1024 if match.group(4).lower() == "ib" else 1000
    scale = base ** (_POWERS.index(match.group(3).lower()) + 1) if match.group(3) else 1
    num_bytes = int(Decimal(match.group(2)) * scale)
    return -num_bytes if match.group(1) else num_bytes


def size_text(num_bytes: int) -> str:
    """Format a size as the shortest exact string: `2.5GiB` for 2684354560."""
    forms = (
        _in_units(num_bytes, base, power, letters) for base, letters in _LETTERS.items() for power in range(6, 0, -1)
    )
    return min((form for form in forms if form), key=len, default=f"{num_bytes}B")


_LETTERS = {1024: [f"{letter}iB" for letter in "KMGTPE"], 1000: [f"{letter}B" for letter in "kMGTPE"]}


def _in_units(num_bytes: int, base: int, power: int, letters: Sequence[str]) -> str:
    """Format a size in one unit with at most two decimals; return "" if that is inexact."""
    hundredths, rest = divmod(num_bytes * 100, base**power)
    if rest or hundredths < 100:
        return ""
    return f"{Decimal(hundredths) / 100:f}".removesuffix(".00") + letters[power - 1]
