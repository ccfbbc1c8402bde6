"""Become the user's command: from here on the replica's process is the user's, with its code and its signals."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from windlass.record.causes import Cause
from windlass.supervise.replica.exit_report import report_end

__all__ = ["become"]


def become(command: Sequence[str], environ: Mapping[str, str]) -> int:
    """Execute a command in place of this process; returns a code only where that cannot be done."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(command[0], list(command), dict(environ))
    except OSError as error:
        return report_end(environ, Cause.START_FAILED, f"`{command[0]}` cannot be executed: {error.strerror}", code=127)
