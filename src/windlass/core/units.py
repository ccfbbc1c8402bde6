"""Durations and sizes: conversion between numbers and text with a unit.

Durations are seconds (float): `90s`, `20m`, `1h30m`, `5d`, `250ms`. Sizes are bytes (int): `512 MiB`, `16GB`, `1.5T`.
Single letters and binary units are powers of 1024 (`16G` = `16GiB`), units such as `GB` are powers of 1000.
"""

from __future__ import annotations

import re

__all__ = ["format_duration", "format_size", "parse_duration", "parse_size"]

_DURATION_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|min|s|m|h|d|w)")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKMGTP]?)(i?B|i)?\s*\Z")
_POWER = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}


def parse_duration(text: str) -> float:
    """Parse a duration such as `1h30m` to seconds; raises ValueError with the accepted form."""
    position, total = 0, 0.0
    text = text.strip()
    while position < len(text):
        match = _DURATION_PART.match(text, position)
        if match is None:
            raise ValueError("a duration is a number with a unit: 90s, 20m, 1h30m, 5d")
        total += float(match.group(1)) * _DURATION_S[match.group(2)]
        position = match.end()
    if not text:
        raise ValueError("a duration is a number with a unit: 90s, 20m, 1h30m, 5d")
    return round(total, 9)  # 9ms is exactly 0.009


def format_duration(seconds: float) -> str:
    """Format a duration as the shortest exact string that `parse_duration` accepts: 5400 -> `1h30m`."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 0:
        raise ValueError(f"negative duration: {seconds}")
    parts = []
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Parse a size such as `16GiB` to bytes; raises ValueError with the accepted form."""
    match = _SIZE.match(text)
    if match is None:
        raise ValueError("a size is a number with a unit: 512MiB, 16GiB, 1.5TB")
    base = 1000 if match.group(3) == "B" and match.group(2) else 1024
    factor: int = base ** _POWER[match.group(2)]
    return round(float(match.group(1)) * factor)


def format_size(num_bytes: int) -> str:
    """Format a size as the shortest exact string that `parse_size` accepts: 17179869184 -> `16GiB`."""
    for unit, power in (("PiB", 5), ("TiB", 4), ("GiB", 3), ("MiB", 2)):
        if num_bytes and num_bytes % 1024**power == 0:
            return f"{num_bytes // 1024**power}{unit}"
    for unit, power in (("TB", 4), ("GB", 3), ("MB", 2)):
        if num_bytes and num_bytes % 1000**power == 0:
            return f"{num_bytes // 1000**power}{unit}"  # 10240MB rather than 10000000KiB
    if num_bytes and num_bytes % 1024 == 0:
        return f"{num_bytes // 1024}KiB"
    return f"{num_bytes}B"
