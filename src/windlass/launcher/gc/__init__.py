"""Garbage collection of files that no run needs any more."""
