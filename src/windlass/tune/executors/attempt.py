"""One attempt of a trial in this process: counts its reports, asks before it goes on, saves when told to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from windlass.tune.executors.channel import ChannelClosed, Message, WorkerChannel
from windlass.tune.executors.protocol import StartAttempt, Work
from windlass.tune.storage import TrialCheckpointStore, copy_folder
from windlass.tune.trainable.checkpoint import Checkpoint
from windlass.tune.trainable.metrics import TIME_DIGITS, flatten_metrics
from windlass.tune.trainable.session import TrialContext, TrialHalted

__all__ = ["TrialAttempt"]


class TrialAttempt:
    """The session of a trial's code, between it and the executor.

    Attributes:
        save: saves a class trainable into a folder; None for a function, which saves by reporting.
        is_done: whether a function has reported `done`.
        is_halted: whether it was told to end.
        is_cut: whether the executor is gone; the trial's code is ended by `TrialHalted` then too.
    """

    def __init__(
        self, channel: WorkerChannel, work: Work, start: StartAttempt, *, on_report: Callable[[], None] | None = None
    ) -> None:
        self.start = start
        self._on_report = on_report
        self.save: Callable[[str], None] | None = None
        self.is_done = False
        self.is_cut = False
        self.iteration = start.iteration
        self.time_total_s = start.time_total_s
        self.checkpoint = Checkpoint(start.restore_from) if start.restore_from else None
        self._channel = channel
        self._work = work
        self._store = TrialCheckpointStore(work.storage)
        self._upto = start.iteration + start.credit
        self._saved: tuple[int, str] | None = None
        self._is_save_due = False
        self.is_halted = False
        self._began = time.perf_counter()

    @property
    def context(self) -> TrialContext:
        """Who the trial is."""
        return TrialContext(
            experiment_name=self._work.name,
            trial_id=self.start.trial,
            trial_name=self.start.trial,
            trial_dir=f"{self._work.folder}/trials/{self.start.trial}",
            attempt=self.start.attempt,
            resources=self.start.resources,
        )

    # ---------------------------------------------------------------------------------------------- for functions

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        """What `tune.report` does in a function."""
        self._raise_if_halted()  # once more, for code that swallowed the first one
        seconds = round(time.perf_counter() - self._began, TIME_DIGITS)
        flat = flatten_metrics(metrics)
        self.iteration = self._next_iteration(flat.get("training_iteration"))
        self.time_total_s += seconds
        flat["training_iteration"] = self.iteration
        flat.setdefault("time_this_iter_s", seconds)
        flat["time_total_s"] = round(self.time_total_s, TIME_DIGITS)
        path = self._keep_reported(checkpoint) if checkpoint is not None else ""
        self.tell(flat, path)
        if flat.get("done"):
            self.is_done = True
            raise TrialHalted
        self._began = time.perf_counter()

    def _next_iteration(self, given: object) -> int:
        """One more than the last; where the trial counts for itself, and forward, its own count."""
        return given if type(given) is int and given > self.iteration else self.iteration + 1

    def _keep_reported(self, checkpoint: Checkpoint) -> str:
        def write(folder: str) -> None:
            with checkpoint.as_directory() as source:
                copy_folder(source, folder)

        path = self._keep(write)
        self.checkpoint = Checkpoint(path)
        return path

    # ------------------------------------------------------------------------------------------------- for both

    def tell(self, metrics: dict[str, Any], saved: str = "") -> None:
        """Send one report, and wait for an answer when the credit is used up.

        Args:
            metrics: flat, with the counts.

        Raises:
            TrialHalted: the trial is to end.
        """
        message = self._message("reported")
        message["metrics"] = metrics
        message["saved"] = saved
        self._send(message)
        if self._on_report is not None:
            self._on_report()
        if metrics.get("done"):
            return
        self._listen()

    def keep_now(self) -> str:
        """Save a class trainable; returns the path."""
        assert self.save is not None
        return self._keep(self.save)

    def _keep(self, write: Callable[[str], None]) -> str:
        path = self._store.keep(self.start.trial, self.iteration, self.start.attempt, write)
        self._saved = (self.iteration, path)
        if self._is_save_due:
            self._is_save_due = False
            self._tell_saved(self._saved)
        return path

    def listen(self) -> None:
        """Obey what has come, without waiting for more."""
        while (message := self._receive(0)) is not None:
            self._obey(message)
        self._raise_if_halted()

    def _listen(self) -> None:
        """Obey everything that has come; wait while there is no credit."""
        while not self.is_halted:
            message = self._receive(None if self.iteration >= self._upto else 0)
            if message is None:
                break
            self._obey(message)
        self._raise_if_halted()

    def _obey(self, message: Message) -> None:
        if message.get("trial") != self.start.trial or message.get("attempt") != self.start.attempt:
            return
        if message["saves"]:
            self._save_as_told()
        if message["type"] == "halt":
            self.is_halted = True
        else:
            upto = message.get("upto") or self._upto + message["credit"]
            self._upto = max(self._upto, upto)

    def _save_as_told(self) -> None:
        """A class saves here and now; of a function it is the newest checkpoint, or the next one where there is none."""
        if self.save is not None and (self._saved is None or self._saved[0] != self.iteration):
            self.keep_now()
        if self._saved is None:
            self._is_save_due = True
        else:
            self._tell_saved(self._saved)

    def _tell_saved(self, saved: tuple[int, str]) -> None:
        message = self._message("saved")
        message["iteration"], message["path"] = saved
        self._send(message)

    def _raise_if_halted(self) -> None:
        if self.is_halted:
            raise TrialHalted

    def end(self, how: str, error: str = "", kind: str = "") -> None:
        """Say how it ended; the last message of an attempt."""
        message = self._message("ended")
        message |= {"how": how, "error": error, "kind": kind}
        self._channel.send(message)

    def _send(self, message: Message) -> None:
        try:
            self._channel.send(message)
        except ChannelClosed as error:
            self._cut(error)

    def _receive(self, timeout_s: float | None) -> Message | None:
        try:
            return self._channel.receive(timeout_s)
        except ChannelClosed as error:
            self._cut(error)

    def _cut(self, error: ChannelClosed) -> NoReturn:
        self.is_cut = self.is_halted = True
        raise TrialHalted from error

    def _message(self, type_: str) -> Message:
        return {"type": type_, "trial": self.start.trial, "attempt": self.start.attempt}
