"""Shell completion."""

COMPLETE = "_WINDLASS_COMPLETE"
"""Environment variable that the completion script sets: complete the line, do not run it (see `shells`)."""
