"""A save in a thread: files and messages go on while training does."""

from __future__ import annotations

import threading

from windlass.train.checkpoint.protocol import Committed
from windlass.train.checkpoint.saving import Save

__all__ = ["AsyncSave"]


class AsyncSave:
    """A save that was begun; its thread keeps the process alive until it ended.

    What takes time in it (hashing, writing, waiting for others) runs without the interpreter's lock, so a thread is
    enough: benches/bench_train_checkpoints.py measures what it costs the steps.
    """

    def __init__(self, save: Save, *, is_async: bool) -> None:
        self._save = save
        self._result: Committed | None = None
        self._error: BaseException | None = None
        self._is_told = False
        self._thread: threading.Thread | None = None
        if is_async:
            self._thread = threading.Thread(target=self._run, name="windlass-checkpoint")
            self._thread.start()
        else:
            self._run()

    def is_done(self) -> bool:
        """Whether it ended, well or not."""
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> Committed:
        """Block until it is committed; raises what went wrong, on every process."""
        if self._thread is not None:
            self._thread.join()
        self._is_told = True
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def settle(self) -> None:
        """As `wait`, but what somebody was told already is not told again."""
        if self._thread is not None:
            self._thread.join()
        if not self._is_told:
            self.wait()

    def _run(self) -> None:
        try:
            self._result = self._save.run()
        except BaseException as error:  # noqa: BLE001  raised again by `wait`
            self._error = error
