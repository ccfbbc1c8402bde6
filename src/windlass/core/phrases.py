"""Times, sizes and counts formatted for users; never parsed again."""

from __future__ import annotations

import time

__all__ = ["ago", "brief", "count", "duration", "local_time", "number", "size"]


def duration(seconds: float) -> str:
    """Format a duration in at most two units: `0.4s`, `12s`, `3m20s`, `2h05m`, `4d03h`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    for unit, length, below, length_below in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length}{unit}{whole % length // length_below:02d}{below}"
    return f"{whole}s"


def ago(then: float, now: float) -> str:
    """Format how long ago a time was, in one unit: `5m ago`."""
    passed = max(0.0, now - then)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if passed >= length:
            return f"{int(passed // length)}{unit} ago"
    return f"{int(passed)}s ago"


def local_time(seconds: float) -> str:
    """Format a Unix timestamp in the local time zone, with its offset: `2026-11-21 05:04:09 +0000`."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(seconds))


def size(num_bytes: float) -> str:
    """Format a size: `812 B`, `1.5 MiB`."""
    for unit, power in (("PiB", 5), ("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if num_bytes >= 1024**power:
            return f"{num_bytes / 1024**power:.1f} {unit}"
    return f"{int(num_bytes)} B"


def count(how_many: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: `1 task`, `3 tasks`."""
    return f"{how_many} {noun if how_many == 1 else plural or noun + 's'}"


def number(value: float) -> str:
    """Format a measured number with at most six digits: `0.971667`, `12`, `3e-05`."""
    return f"{value:.6g}"


def brief(text: str, width: int) -> str:
    """Return the first line of a string, shortened to `width` characters with `...`."""
    line = text.split("\n", 1)[0]
    return line if len(line) <= width else line[: width - 3] + "..."
