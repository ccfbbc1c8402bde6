"""A moment on the command line: `10m` (ago), `2026-11-21`, `2026-11-21T05:04:09Z`."""

from __future__ import annotations

import datetime as dt
import time

import click

from windlass.core.units import parse_duration

if TYPE_CHECKING:
    from click import Context, Parameter

__all__ = ["DurationType", "MomentType"]


class MomentType(_Type):
    """Seconds since 1970 UTC from a duration before now, or from a date or time (ISO 8601; local where it names no zone)."""

    name = "moment"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """What the help page shows."""
        return "WHEN"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it, or say the accepted form."""
        if isinstance(value, int | float):
            return float(value)
        text = str(value)
        try:
            return time.time() - parse_duration(text)
        except ValueError:
            pass  # not a duration: it may be a date
        try:
            return dt.datetime.fromisoformat(text).timestamp()
        except ValueError:
            self.fail(f"`{text}` is no moment; write how long ago (10m, 2d) or a date (2026-11-21T05:04)", param, ctx)
