"""Numbers in a document: integers, floats, durations and sizes, with range checks."""

from __future__ import annotations

import math
import re

from windlass.config.document import ScalarNode
from windlass.config.field_types import FloatType, IntegerType
from windlass.core.dataclass import dataclass
from windlass.core.units import format_duration, format_size, parse_duration, parse_size

__all__ = [
    "DURATION_REGEX",
    "SIZE_REGEX",
    "InvalidNumber",
    "bounds_text",
    "format_seconds",
    "read_float",
    "read_integer",
]

DURATION_REGEX = r"^\s*(?:\d+(?:\.\d+)?\s*(?:ms|min|s|m|h|d|w)\s*)+$"
SIZE_REGEX = r"^\s*\d+(?:\.\d+)?\s*(?:[kKMGTP](?:i?B|i)?|B)\s*$"
_CLOCK = re.compile(r"(\d{1,4}):(\d\d)(?::(\d\d))?\Z", re.ASCII)
_DAYS_CLOCK = re.compile(r"(\d{1,4})-(\d{1,2}):(\d\d):(\d\d)\Z", re.ASCII)
# Above this, floats cannot represent every integer, so text and value would differ.
_MAX_EXACT = 2**53


@dataclass(frozen=True, slots=True)
class InvalidNumber:
    """Problem with a number; its message continues a sentence that starts with the field's name."""

    message: str
    code: str
    hint: str


def read_integer(scalar: ScalarNode, field_type: IntegerType) -> int | InvalidNumber | None:
    """Read an integer or a size; return None if the scalar has another type."""
    if field_type.is_size:
        return _size(scalar, field_type)
    if isinstance(scalar.value, bool) or not isinstance(scalar.value, int):
        return None
    return scalar.value if field_type.range.holds(scalar.value) else _out_of_range(scalar.text, bounds_text(field_type))


def read_float(scalar: ScalarNode, field_type: FloatType) -> float | InvalidNumber | None:
    """Read a float or a duration; return None if the scalar has another type."""
    if field_type.is_duration:
        return _duration(scalar, field_type)
    if isinstance(scalar.value, bool) or not isinstance(scalar.value, int | float):
        return None
    try:
        value = float(scalar.value)
    except OverflowError:
        return _out_of_range(scalar.text, "a number below 1.8e308")
    if field_type.range.holds(value) or field_type.range == type(field_type.range)():
        return value
    return _out_of_range(scalar.text, bounds_text(field_type) + (" and finite" if math.isinf(value) else ""))


def _out_of_range(text: str, legal: str) -> InvalidNumber:
    shown = text if len(text) <= 40 else text[:37] + "..."
    return InvalidNumber(f"is `{shown}`, which is out of range", "invalid-value", f"it must be {legal}")


def _duration(scalar: ScalarNode, field_type: FloatType) -> float | InvalidNumber | None:
    if not isinstance(scalar.value, str):
        return None
    try:
        total = parse_duration(scalar.value)
    except ValueError as error:
        return InvalidNumber(
            f"cannot be the text `{scalar.value}`", "invalid-value", _clock_hint(scalar.value) or str(error)
        )
    if not total * 1000 < _MAX_EXACT:
        return _out_of_range(scalar.value, "shorter than that")
    milliseconds = round(total * 1000)
    if abs(total * 1000 - milliseconds) > 1e-6 * max(1.0, milliseconds * 1e-9):
        return InvalidNumber(
            f"is `{scalar.value}`, finer than a millisecond", "invalid-value", "the finest unit is `1ms`"
        )
    seconds = milliseconds / 1000
    return seconds if field_type.range.holds(seconds) else _out_of_range(scalar.value, bounds_text(field_type))


def _clock_hint(text: str) -> str:
    """Suggest a duration for `24:00:00` or Slurm's `5-00:00:00`."""
    days = _DAYS_CLOCK.match(text)
    if days:
        fields = [int(group) for group in days.groups()]
        return f"write `{format_duration(fields[0] * 86400 + fields[1] * 3600 + fields[2] * 60 + fields[3])}`"
    clock = _CLOCK.match(text)
    if clock and clock.group(3):
        hours, minutes, seconds = (int(group) for group in clock.groups())
        return f"write `{format_duration(hours * 3600 + minutes * 60 + seconds)}`"
    return ""


def _size(scalar: ScalarNode, field_type: IntegerType) -> int | InvalidNumber | None:
    if not isinstance(scalar.value, str):
        return None
    form = "a size is a number with a unit: 512MiB, 16GiB, 1.5TB"
    text = scalar.value.strip()
    if text[-1:].isdigit():
        return InvalidNumber(f"is `{text}`, which has no unit", "invalid-value", form)
    try:
        num_bytes = parse_size(text)
    except ValueError as error:
        return InvalidNumber(f"cannot be the text `{scalar.value}`", "invalid-value", str(error))
    except OverflowError:
        num_bytes = _MAX_EXACT + 1
    if num_bytes > _MAX_EXACT:
        return _out_of_range(scalar.value, "at most 8PiB")
    return num_bytes if field_type.range.holds(num_bytes) else _out_of_range(scalar.value, bounds_text(field_type))


def format_seconds(seconds: float) -> str:
    """Format a duration as text that parses to the same number of seconds."""
    if not 0 <= seconds * 1000 < _MAX_EXACT:
        return f"{seconds!r}s"
    exact = format_duration(seconds)
    return exact if round(seconds * 1000) / 1000 == seconds else f"{seconds:.9f}s"


def bounds_text(field_type: IntegerType | FloatType) -> str:
    """Describe the valid range: `between 1 and 10000`, `at least 1s`."""
    bounds = field_type.range

    def show(value: float) -> str:
        if isinstance(field_type, FloatType) and field_type.is_duration:
            return format_duration(value)
        if isinstance(field_type, IntegerType) and field_type.is_size:
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
