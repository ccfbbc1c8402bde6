"""Times on the command line: a moment (`10m` ago, `2026-11-21`) and a duration (`90s`)."""

from __future__ import annotations

import contextlib
import datetime as dt
import time

import click

from windlass.core.units import parse_duration

__all__ = ["as_duration", "as_moment"]


def as_moment(context: click.Context, parameter: click.Parameter, value: str | None) -> float:
    """Callback of an option: seconds since 1970 UTC, 0 where nothing was given.

    A date or time is ISO 8601, local where it names no zone.
    """
    if value is None:
        return 0.0
    with contextlib.suppress(ValueError):
        return time.time() - parse_duration(value)
    with contextlib.suppress(ValueError):  # no duration: a date?
        return dt.datetime.fromisoformat(value).timestamp()
    message = f"`{value}` is no moment; write how long ago (10m, 2d) or a date (2026-11-21T05:04)"
    raise click.BadParameter(message, context, parameter)


def as_duration(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """Callback of an option: seconds, None where nothing was given."""
    if value is None:
        return None
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"`{value}`: {error}", context, parameter) from None
