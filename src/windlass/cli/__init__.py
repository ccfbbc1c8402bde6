"""The command line: `windlass VERB ...`. Loads a verb's code only when that verb is called."""

from __future__ import annotations

from windlass.cli.program import main

__all__ = ["main"]
