"""The script that a job of gantry runs, as text: it travels inside the command, so a launch uploads nothing for it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__all__ = ["command"]


@cache
def command() -> tuple[str, ...]:
    """Return the command that starts the script; the user's command is its arguments."""
    script = Path(__file__).with_name("entrypoint.sh").read_text(encoding="ascii")
    return ("bash", "-c", script, "gantry")
