"""Option types for points in time (`10m` ago, `2026-11-21`) and durations (`90s`)."""

from __future__ import annotations

import contextlib
import datetime as dt
import time

import click

from windlass.core.units import parse_duration

__all__ = ["as_duration", "as_moment"]


def as_moment(context: click.Context, parameter: click.Parameter, value: str | None) -> float:
    """Convert an option's point in time to seconds since 1970 UTC; return 0 if it is not given.

    A date or time is ISO 8601, local time without a zone.
    """
    if value is None:
        return 0.0
    with contextlib.suppress(ValueError):
        return time.time() - parse_duration(value)
    with contextlib.suppress(ValueError):  # not a duration; try a date
        return dt.datetime.fromisoformat(value).timestamp()
    message = f"invalid time `{value}`: use 10m, 2d or 2026-11-21T05:04"
    raise click.BadParameter(message, context, parameter)


def as_duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Convert an option's duration to seconds; return None if it is not given."""
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"`{value}`: {error}", context, parameter) from None
