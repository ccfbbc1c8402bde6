"""The command line, `windlass VERB ...`. A verb's code is imported only when that verb is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from windlass.cli.completion import COMPLETE
from windlass.cli.exit_codes import EXIT_INTERRUPTED

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Ctrl-C never prints a traceback, even during imports."""
    try:
        from windlass.cli.program import main as run_program  # lazy: Ctrl-C may come during the import

        return run_program(argv)
    except KeyboardInterrupt:
        if COMPLETE not in os.environ:
            sys.stderr.write("\ninterrupted\n")
        return EXIT_INTERRUPTED
