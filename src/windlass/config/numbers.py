"""Numbers from a document: whole, real, durations in seconds, sizes in bytes, each within its range."""

from __future__ import annotations

import math
import re

from windlass.config.document import Leaf
from windlass.config.shape import Float, Integer
from windlass.core.dataclass import dataclass
from windlass.core.units import format_duration, format_size, parse_duration, parse_size

__all__ = ["DURATION_REGEX", "SIZE_REGEX", "Refusal", "bounds_text", "format_seconds", "read_float", "read_integer"]

DURATION_REGEX = r"^\s*(?:\d+(?:\.\d+)?\s*(?:ms|min|s|m|h|d|w)\s*)+$"
SIZE_REGEX = r"^\s*\d+(?:\.\d+)?\s*(?:[kKMGTP](?:i?B|i)?|B)\s*$"
_CLOCK = re.compile(r"(\d{1,4}):(\d\d)(?::(\d\d))?\Z", re.ASCII)
_DAYS_CLOCK = re.compile(r"(\d{1,4})-(\d{1,2}):(\d\d):(\d\d)\Z", re.ASCII)
# Above this a float no longer holds every whole number, and text and value would not agree.
_MAX_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a scalar of the right type is still refused; the message follows the name of the field."""

    message: str
    code: str
    hint: str


def read_integer(leaf: Leaf, shape: Integer) -> int | Refusal | None:
    """The whole number or bytes of a scalar; None where it is of another type."""
    if shape.is_size:
        return _size(leaf, shape)
    if isinstance(leaf.value, bool) or not isinstance(leaf.value, int):
        return None
    return leaf.value if shape.range.holds(leaf.value) else _out_of_range(leaf.text, bounds_text(shape))


def read_float(leaf: Leaf, shape: Float) -> float | Refusal | None:
    """The number or seconds of a scalar; None where it is of another type."""
    if shape.is_duration:
        return _duration(leaf, shape)
    if isinstance(leaf.value, bool) or not isinstance(leaf.value, int | float):
        return None
    try:
        value = float(leaf.value)
    except OverflowError:
        return _out_of_range(leaf.text, "a number below 1.8e308")
    if shape.range.holds(value) or shape.range == type(shape.range)():
        return value
    return _out_of_range(leaf.text, bounds_text(shape) + (" and finite" if math.isinf(value) else ""))


def _out_of_range(text: str, legal: str) -> Refusal:
    shown = text if len(text) <= 40 else text[:37] + "..."
    return Refusal(f"is `{shown}`, which is out of range", "out-of-range", f"it must be {legal}")


def _duration(leaf: Leaf, shape: Float) -> float | Refusal | None:
    if not isinstance(leaf.value, str):
        return None
    try:
        total = parse_duration(leaf.value)
    except ValueError as error:
        return Refusal(f"cannot be the text `{leaf.value}`", "wrong-value", _clock_hint(leaf.value) or str(error))
    if not total * 1000 < _MAX_EXACT:
        return _out_of_range(leaf.value, "shorter than that")
    milliseconds = round(total * 1000)
    if abs(total * 1000 - milliseconds) > 1e-6 * max(1.0, milliseconds * 1e-9):
        return Refusal(f"is `{leaf.value}`, finer than a millisecond", "out-of-range", "the finest unit is `1ms`")
    seconds = milliseconds / 1000
    return seconds if shape.range.holds(seconds) else _out_of_range(leaf.value, bounds_text(shape))


def _clock_hint(text: str) -> str:
    """A proposal for `24:00:00` or Slurm's `5-00:00:00`."""
    days = _DAYS_CLOCK.match(text)
    if days:
        fields = [int(group) for group in days.groups()]
        return f"write `{format_duration(fields[0] * 86400 + fields[1] * 3600 + fields[2] * 60 + fields[3])}`"
    clock = _CLOCK.match(text)
    if clock and clock.group(3):
        hours, minutes, seconds = (int(group) for group in clock.groups())
        return f"write `{format_duration(hours * 3600 + minutes * 60 + seconds)}`"
    return ""


def _size(leaf: Leaf, shape: Integer) -> int | Refusal | None:
    if not isinstance(leaf.value, str):
        return None
    form = "a size is a number with a unit: 512MiB, 16GiB, 1.5TB"
    text = leaf.value.strip()
    if text[-1:].isdigit():
        return Refusal(f"is `{text}`, which has no unit", "wrong-value", form)
    try:
        num_bytes = parse_size(text)
    except ValueError as error:
        return Refusal(f"cannot be the text `{leaf.value}`", "wrong-value", str(error))
    except OverflowError:
        num_bytes = _MAX_EXACT + 1
    if num_bytes > _MAX_EXACT:
        return _out_of_range(leaf.value, "at most 8PiB")
    return num_bytes if shape.range.holds(num_bytes) else _out_of_range(leaf.value, bounds_text(shape))


def format_seconds(seconds: float) -> str:
    """A duration as text that reads back as the same number of seconds, or is refused when read."""
    if not 0 <= seconds * 1000 < _MAX_EXACT:
        return f"{seconds!r}s"
    exact = format_duration(seconds)
    return exact if round(seconds * 1000) / 1000 == seconds else f"{seconds:.9f}s"


def bounds_text(shape: Integer | Float) -> str:
    """The legal range in words: `between 1 and 10000`, `at least 1s`."""
    bounds = shape.range

    def show(value: float) -> str:
        if isinstance(shape, Float) and shape.is_duration:
            return format_duration(value)
        if isinstance(shape, Integer) and shape.is_size:
            return format_size(int(value))
        return f"{value:g}" if abs(value) < 1e6 else str(value)

    if bounds.min is not None and bounds.max is not None:
        return f"between {show(bounds.min)} and {show(bounds.max)}"
    parts = []
    if bounds.min is not None:
        parts.append(f"at least {show(bounds.min)}")
    if bounds.above is not None:
        parts.append(f"above {show(bounds.above)}")
    if bounds.max is not None:
        parts.append(f"at most {show(bounds.max)}")
    return " and ".join(parts)
