"""Exit codes for ends that are not errors: Ctrl-C and a closed pipe."""

from __future__ import annotations

__all__ = ["EXIT_BROKEN_PIPE", "EXIT_INTERRUPTED"]

EXIT_INTERRUPTED = 130
"""Ctrl-C."""

EXIT_BROKEN_PIPE = 141
"""Exit code that a shell reports for SIGPIPE; nothing is printed."""
