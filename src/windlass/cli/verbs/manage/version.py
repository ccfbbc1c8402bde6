"""`windlass version`."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from windlass.cli.screen import emit, emit_json
from windlass.cli.verb import json_option, verb
from windlass.core.version import VERSION

__all__ = ["version_command"]


@verb("windlass version", "windlass version --json", name="version")
@json_option
def version_command(is_json: bool) -> None:
    """Print the version, and the Python that windlass runs on."""
    where = Path(__file__).parents[3]
    if is_json:
        python = {"version": platform.python_version(), "executable": sys.executable}
        emit_json("windlass.version/1", {"version": VERSION, "python": python, "path": str(where)})
        return
    emit(f"windlass {VERSION}  (python {platform.python_version()}, {where})")
