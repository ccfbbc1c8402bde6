"""Exit codes that no error has: those of a person or a pipe that went away."""

from __future__ import annotations

__all__ = ["EXIT_BROKEN_PIPE", "EXIT_INTERRUPTED"]

EXIT_INTERRUPTED = 130
"""Ctrl-C."""

EXIT_BROKEN_PIPE = 141
"""What a shell reports for a program that a closed pipe ended; nothing is printed."""
