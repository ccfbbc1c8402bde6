"""Replacement of this process by the user's command, whose exit code and signals become the replica's."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from windlass.record.causes import Cause
from windlass.supervise.replica.exit_report import report_end

__all__ = ["become"]


def become(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Replace this process with a command; return an exit code only on failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), dict(environ))
    except OSError as error:
        return report_end(environ, Cause.START_FAILED, f"`{command[0]}` cannot be executed: {error.strerror}", code=127)
