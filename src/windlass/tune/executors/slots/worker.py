"""Worker in a slot's run, `python -m windlass.tune.executors.slots.worker`: serves trials until `leave`."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from windlass import report
from windlass.core.clock import SystemClock
from windlass.core.errors import PreconditionError, UsageError, WindlassError
from windlass.core.json_text import read_json
from windlass.record.journal import JournalReader, JournalWriter
from windlass.tune.executors.channel import ChannelClosed, Message, rebuild_work
from windlass.tune.executors.protocol import Work
from windlass.tune.executors.slots.files import (
    HEARTBEAT,
    HELLO,
    MESSAGE,
    ORDER,
    SLOT_VARIABLE,
    SWEEP_VARIABLE,
    SlotFiles,
)
from windlass.tune.executors.worker import Worker

__all__ = ["FileChannel", "main"]


_SOON_S = 0.01
_LATE_S = 0.25
_FRESH_EVERY_S = 2.0
_BEAT_EVERY_S = 15.0


class FileChannel:
    """Connection from one incarnation of a worker to any head, through files, which outlives heads.

    Args:
        incarnation: name of this incarnation, which sorts after earlier ones.
        on_first_end: called once, after the end of the first trial was sent.
    """

    def __init__(
        self, files: SlotFiles, slot: str, incarnation: str, *, on_first_end: Callable[[], None] = lambda: None
    ) -> None:
        self.incarnation = incarnation
        self._orders = JournalReader(files.orders(slot))
        self._spool = JournalWriter(files.spools, f"{slot}.{incarnation}", SystemClock())
        self._lock = threading.Lock()
        self._waiting: list[Message] = []
        self._fresh_at = 0.0
        self._is_over = False
        self._on_first_end: Callable[[], None] | None = on_first_end
        self._write(HELLO, host=socket.gethostname(), pid=os.getpid())
        threading.Thread(target=self._beat, name="windlass-beat", daemon=True).start()

    def send(self, message: Message) -> None:
        """Append a message to the spool; it is on disk on return."""
        self._write(MESSAGE, message=message)
        if message["type"] == "ended" and self._on_first_end is not None:
            then, self._on_first_end = self._on_first_end, None
            then()

    def receive(self, timeout_s: float | None = None) -> Message | None:
        """Return the next order to this incarnation; see `WorkerChannel.receive`.

        Polls every 10 to 250 ms.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = _SOON_S
        while not self._waiting:
            self._look()
            if self._waiting:
                break
            left_s = pause_s if deadline is None else min(pause_s, deadline - time.monotonic())
            if left_s <= 0:
                return None
            time.sleep(left_s)
            pause_s = min(pause_s * 1.3, _LATE_S)
        message = self._waiting.pop(0)
        if message["type"] == "start":
            self.send({"type": "started", "trial": message["trial"], "attempt": message["attempt"]})
        return message

    def close(self) -> None:
        """Close the spool."""
        with self._lock:
            self._is_over = True
            self._spool.close()

    def _look(self) -> None:
        now = time.monotonic()
        is_fresh = now >= self._fresh_at  # a network file system shows new bytes only after the file is reopened
        if is_fresh:
            self._fresh_at = now + _FRESH_EVERY_S
        for record in self._orders.poll(is_fresh=is_fresh):
            if record.kind == ORDER and record.data.get("to") == self.incarnation:
                self._waiting.append(record.data["message"])

    def _write(self, kind: str, **data: Any) -> None:
        with self._lock:
            if self._is_over:
                raise ChannelClosed("the spool is closed")
            try:
                self._spool.append(kind, **data)
            except OSError as error:
                raise ChannelClosed(f"the spool cannot be written: {error}") from error

    def _beat(self) -> None:
        """Write heartbeats, regardless of the trial."""
        try:
            while True:
                time.sleep(_BEAT_EVERY_S)
                self._write(HEARTBEAT)
        except ChannelClosed:
            return


def main(environ: Mapping[str, str] = os.environ) -> int:
    """Serve trials and return the exit code.

    Errors before the first trial go to standard error.
    """
    folder, slot = environ.get(SWEEP_VARIABLE), environ.get(SLOT_VARIABLE)
    if not folder or not slot:
        raise UsageError(
            "this is the worker of a sweep's slots, which `windlass sweep launch` starts",
            hint="write `trainable: MODULE:NAME` into `sweep:` and launch the file",
            code="usage",
        )
    files = SlotFiles(Path(folder))
    sys.path.insert(0, os.getcwd())
    work = _work(files)
    with closing(FileChannel(files, slot, incarnation(environ), on_first_end=_show_progress)) as channel:
        Worker(channel, work).run()
    return 0


def _show_progress() -> None:
    """Report a finished trial as progress, so that windlass continues to restart the worker."""
    if report.is_active():
        with report.checkpoint_dir(step=int(time.time())) as folder:
            (folder / "trials").write_text("one or more")


def _work(files: SlotFiles) -> Work:
    try:
        data = read_json(files.work)
        assert isinstance(data, dict)
        for module in data["preload"]:
            importlib.import_module(module)
        return rebuild_work(data)
    except (OSError, ValueError, AssertionError) as error:
        raise PreconditionError(f"{files.work} cannot be read: {error}", code="run-damaged") from error
    except (ImportError, AttributeError) as error:
        raise PreconditionError(
            f"this slot cannot import the trainable: {error}",
            hint="put its module into the experiment's `code`, or install it in its environment",
            code="module-not-found",
        ) from error


def incarnation(environ: Mapping[str, str]) -> str:
    """Return the name of this incarnation, which sorts after earlier attempts of its run."""
    number = environ.get("WINDLASS_ATTEMPT", "")
    return f"{int(number) if number.isdigit() else 0:05d}-{os.urandom(3).hex()}"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except WindlassError as problem:
        sys.stderr.write(problem.render() + "\n")
        sys.exit(problem.exit_code)
