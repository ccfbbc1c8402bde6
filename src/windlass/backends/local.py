"""The local backend: the user's processes are processes of this machine."""

from __future__ import annotations

from windlass.backends.process_tree import ProcessTree

__all__ = ["LocalBackend"]


class LocalBackend(ProcessTree):
    """Runs jobs as processes of the user on this machine."""

    name = "local"
