"""The command line: `windlass VERB ...`. Loads a verb's code only when that verb is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from windlass.cli.exit_codes import EXIT_INTERRUPTED

__all__ = ["main"]

COMPLETE = "_WINDLASS_COMPLETE"
"""Set by the script of `windlass completion`, where the line is not yet one to run; see windlass.cli.completion.shells."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. Ctrl-C ends it without a traceback, also while modules are loaded."""
    try:
        from windlass.cli.program import main as run_program  # lazy: Ctrl-C may come during the import

        return run_program(argv)
    except KeyboardInterrupt:
        if COMPLETE not in os.environ:
            sys.stderr.write("\ninterrupted\n")
        return EXIT_INTERRUPTED
