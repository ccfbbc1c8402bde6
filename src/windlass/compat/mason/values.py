"""Parsers for the values of mason's options: numbers, durations, variables, mounts.

A ValueError's message states the expected form.
"""

from __future__ import annotations

import re

from windlass.compat.mason.options import DatasetMount
from windlass.plan.beaker.quantities import parse_duration_ns

__all__ = [
    "CACHES",
    "PRIORITIES",
    "bucket",
    "cache",
    "count",
    "dataset_mount",
    "duration_ns",
    "filled",
    "listed",
    "natural",
    "priority",
    "retries",
    "run_id",
    "secret",
    "size",
    "variable",
]

CACHES = ("here", "there", "none")
PRIORITIES = ("low", "normal", "high", "urgent", "immediate")
_MAX_COUNT = 2**31 - 1
_MAX_RETRIES = 10
_SIZE = re.compile(r"\d+(\.\d+)? ?([kmgtpe]i?)?b?", re.IGNORECASE)
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def duration_ns(text: str) -> int:
    """Parse a duration as Beaker does and return nanoseconds.

    `90m`, `2h30m` and `1.5 hours` are valid; a bare number is in seconds.
    """
    try:
        return parse_duration_ns(text)
    except ValueError:
        raise ValueError("expected a duration with a unit: 90s, 15m, 2h30m") from None


def natural(text: str) -> int:
    """Parse an integer of at least 0."""
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise ValueError("expected a whole number, 0 or more")
    if number > _MAX_COUNT:
        raise ValueError(f"expected a whole number, at most {_MAX_COUNT}")
    return number


def count(text: str) -> int:
    """Parse an integer of at least 1."""
    number = natural(text) if text.strip() != "0" else 0
    if number < 1:
        raise ValueError("expected a whole number, 1 or more")
    return number


def retries(text: str) -> int:
    """Parse a number of retries, of which Beaker allows at most ten."""
    number = natural(text)
    if number > _MAX_RETRIES:
        raise ValueError(f"Beaker retries a task at most {_MAX_RETRIES} times")
    return number


def size(text: str) -> str:
    """Check a size as Beaker does, and return it unchanged."""
    if not _SIZE.fullmatch(text):
        raise ValueError("expected a size with a unit: 10gb, 2.5GiB")
    return text


def priority(text: str) -> str:
    """Parse one of Beaker's priorities."""
    if text not in PRIORITIES:
        raise ValueError(f"invalid priority; use one of {', '.join(PRIORITIES)}")
    return text


def cache(text: str) -> str:
    """Parse where a dataset is to be cached."""
    if text not in CACHES:
        raise ValueError(f"expected one of {', '.join(CACHES)}")
    return text


def filled(text: str) -> str:
    """Check that a value is not empty; an empty one usually comes from an unset variable in a script."""
    if not text.strip():
        raise ValueError("the value is empty; check that your script's variables are set")
    return text


def listed(text: str) -> str:
    """Parse one name in a blank-separated list."""
    if "," in text:
        raise ValueError("separate values with blanks, not commas")
    return filled(text)


def bucket(text: str) -> str:
    """Parse the name of a Weka bucket, which is also a folder's name."""
    if not _BUCKET.fullmatch(listed(text)):
        raise ValueError("expected a bucket name, such as oe-training-default")
    return text


def secret(text: str) -> tuple[str, str]:
    """Parse `NAME=SECRET`."""
    name, equals, held = text.partition("=")
    if not equals or not name or not held:
        raise ValueError("expected NAME=SECRET")
    return name, held


def variable(text: str) -> tuple[str, str]:
    """Parse `NAME=VALUE`; the value may contain `=` and may be empty."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError("expected NAME=VALUE")
    return name, value


def dataset_mount(text: str) -> DatasetMount:
    """Parse `/path:dataset`."""
    path, colon, dataset = text.partition(":")
    if not colon or not path.startswith("/") or not dataset or ":" in dataset:
        raise ValueError("expected /path:dataset, such as /models:01HQXGAYGCS6D4ZK51K83CM49Y")
    return DatasetMount(mount_path=path, dataset=dataset)


def run_id(text: str) -> str:
    """Parse a run id: letters, digits, `-` and `_`, or `auto`."""
    if not _RUN_ID.fullmatch(text):
        raise ValueError("expected at most 63 letters, digits, `-` and `_`, or `auto`")
    return text
