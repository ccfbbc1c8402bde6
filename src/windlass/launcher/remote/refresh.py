"""Refreshing of a run's mirror while the run is followed."""

from __future__ import annotations

import time

from windlass.core.errors import UnreachableError
from windlass.launcher.remote.mirror import mirror_of_run
from windlass.runs.home import Home
from windlass.runs.store import RunFolder

__all__ = ["MirrorRefresh"]

_LOOK_S = 1.0
_TROUBLED_S = 5.0


class MirrorRefresh:
    """Refresher that pulls new records and logs of a run from its site; does nothing for a local run.

    Attributes:
        trouble: reason why the last pull failed; empty if it succeeded.
    """

    def __init__(self, run: RunFolder, home: Home) -> None:
        self._mirror = mirror_of_run(run, home)
        self._next = 0.0
        self.trouble = ""

    def look(self, *, is_last: bool = False) -> None:
        """Pull the journal and logs, at most once a second, and less often after a failure.

        Args:
            is_last: pull immediately, including the logs of all attempts.
        """
        if self._mirror is None or (time.monotonic() < self._next and not is_last):
            return
        try:
            self._mirror.pull(logs=True, is_last=is_last)
            self.trouble = ""
        except UnreachableError as error:
            self.trouble = error.message
        self._next = time.monotonic() + (_TROUBLED_S if self.trouble else _LOOK_S)
