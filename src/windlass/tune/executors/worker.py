"""Worker that takes attempts from its channel and runs each in this thread.

All executors use this loop, with different channels. A worker ends when it receives `leave` or the channel closes.
"""

from __future__ import annotations

import inspect
import os
import time
import traceback
from collections.abc import Callable, Mapping
from numbers import Number
from types import TracebackType
from typing import Any, NoReturn, Protocol

from windlass.core.errors import UsageError
from windlass.tune.executors.channel import ChannelClosed, Message, WorkerChannel, from_message
from windlass.tune.executors.protocol import AttemptOutcome, StartAttempt, Work
from windlass.tune.storage import TrialCheckpointStore, copy_folder, local_folder
from windlass.tune.trainable.capabilities import can_save, is_class
from windlass.tune.trainable.checkpoint import Checkpoint
from windlass.tune.trainable.class_api import Trainable, load_state, save_state
from windlass.tune.trainable.metrics import TIME_DIGITS, flatten_metrics
from windlass.tune.trainable.session import TrialContext, TrialHalted, enter_session

__all__ = ["Observer", "TrialAttempt", "Worker"]


class TrialAttempt:
    """Session between a trial's code and the executor.

    Attributes:
        save: saves a class trainable to a folder; None for a function, which saves by reporting.
        can_save: whether the trial has a state to save before it ends; one that has none just ends.
        is_done: whether a function has reported `done`.
        is_halted: whether it was ordered to end.
        is_cut: whether the executor is gone; `TrialHalted` then also ends the trial's code.
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
        self.can_save = can_save(work.trainable)
        self._store = TrialCheckpointStore(work.storage)
        self._upto = start.iteration + start.credit
        self._saved: tuple[int, str] | None = None
        self._is_save_due = False
        self.is_halted = False
        self._began = time.perf_counter()

    @property
    def context(self) -> TrialContext:
        """Context that identifies the trial."""
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
        """Handle a call of `tune.report` in a function."""
        self._raise_if_halted()  # again, for code that swallowed the first one
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
        """Return the next iteration: the trial's own count if that has increased, else the last iteration plus one."""
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
        """Send one report, and wait for an answer if the credit is used up.

        Args:
            metrics: flat metrics, with the counts.

        Raises:
            TrialHalted: the trial was ordered to end.
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
        """Save a class trainable now, and return the path."""
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
        """Carry out the orders that have arrived, without waiting for more."""
        while (message := self._receive(0)) is not None:
            self._obey(message)
        self._raise_if_halted()

    def _listen(self) -> None:
        """Carry out the orders that have arrived, and wait for more while there is no credit."""
        while not self.is_halted:
            message = self._receive(None if self.iteration >= self._upto else 0)
            if message is None:
                break
            self._obey(message)
        self._raise_if_halted()

    def _obey(self, message: Message) -> None:
        if message.get("trial") != self.start.trial or message.get("attempt") != self.start.attempt:
            return
        is_halt = message["type"] == "halt"
        if message["saves"] and (self.can_save or not is_halt):
            self._save_as_told()
        if is_halt:
            self.is_halted = True
        else:
            upto = message.get("upto") or self._upto + message["credit"]
            self._upto = max(self._upto, upto)

    def _save_as_told(self) -> None:
        """Carry out an order to save.

        A class saves now; a function returns its newest checkpoint or, without one, its next.
        """
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
        """Send the outcome, which is the last message of an attempt."""
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


_OWN_CODE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Observer(Protocol):
    """Observer of a worker's attempts, used for logs."""

    def began(self, trial: str, attempt: int) -> None:
        """Called when an attempt starts."""

    def on_report(self) -> None:
        """Called when an attempt has reported."""

    def ended(self) -> None:
        """Called when an attempt has ended."""


class Worker:
    """Worker that runs the trials it receives from a channel.

    Args:
        work: the sweep's work, with its trainable.
        observer: called on events.
        passes_interrupts: Ctrl-C in a trial's code ends the worker instead of failing the trial.
    """

    def __init__(
        self, channel: WorkerChannel, work: Work, *, observer: Observer | None = None, passes_interrupts: bool = False
    ) -> None:
        self._passes_interrupts = passes_interrupts
        self._channel = channel
        self._work = work
        self._observer = observer
        self._spare: Trainable | None = None

    def run(self, *, serves_one: bool = False) -> None:
        """Serve until `leave` is received or the channel closes, or serve one attempt only. Blocks."""
        try:
            while True:
                message = self._channel.receive()
                if message is None or message["type"] == "leave":
                    return
                if message["type"] == "start":
                    self.run_attempt(from_message(message))
                    if serves_one:
                        return
        except ChannelClosed:
            return
        finally:
            self._drop_spare()

    def run_attempt(self, start: StartAttempt) -> None:
        """Run one attempt, whose end is the last message sent.

        Raises:
            ChannelClosed: the executor is gone, and the trial's code was ended.
        """
        on_report = None if self._observer is None else self._observer.on_report
        attempt = TrialAttempt(self._channel, self._work, start, on_report=on_report)
        if self._observer is not None:
            self._observer.began(start.trial, start.attempt)
        folder = os.getcwd()
        enter_session(attempt)
        try:
            how, error, kind = self._run(attempt)
        finally:
            enter_session(None)
            os.chdir(folder)  # the next trial starts in the same folder as this one
            if self._observer is not None:
                self._observer.ended()
        if attempt.is_cut:
            raise ChannelClosed("the executor is gone")
        attempt.end(how, error, kind)

    def _run(self, attempt: TrialAttempt) -> tuple[str, str, str]:
        """Run the trial's code, and return (outcome, traceback, name of the error)."""
        try:
            if is_class(self._work.trainable):
                self._run_class(attempt)
            else:
                self._run_function(attempt)
        except TrialHalted:
            return AttemptOutcome.DONE if attempt.is_done else AttemptOutcome.HALTED, "", ""
        except BaseException as error:
            if self._passes_interrupts and isinstance(error, KeyboardInterrupt):
                raise
            is_exit = isinstance(error, SystemExit) and error.code in (None, 0)
            if not attempt.is_halted and not is_exit:
                return AttemptOutcome.FAILED, describe_error(error), type(error).__name__
        return AttemptOutcome.HALTED if attempt.is_halted else AttemptOutcome.DONE, "", ""

    def _run_function(self, attempt: TrialAttempt) -> None:
        returned = self._work.trainable(attempt.start.config)
        if inspect.isgenerator(returned):
            for yielded in returned:
                attempt.report(_metrics_of(yielded))
        elif returned is not None and not (isinstance(returned, dict) and not returned):
            attempt.report({**_metrics_of(returned, "returned"), "done": True})

    # ------------------------------------------------------------------------------------------------- classes

    def _run_class(self, attempt: TrialAttempt) -> None:
        trainable = self._object(attempt)
        try:
            self._restore(trainable, attempt)
            attempt.save = lambda folder: save_state(trainable, folder)
            self._step(trainable, attempt)
        except BaseException as error:
            is_clean = isinstance(error, TrialHalted)
            self._retire(trainable, may_stay=is_clean)
            raise
        self._retire(trainable, may_stay=True)

    def _object(self, attempt: TrialAttempt) -> Trainable:
        spare, self._spare = self._spare, None
        if spare is not None:
            if spare.reset(attempt.start.config):
                return spare
            spare.stop()
        assert isinstance(self._work.trainable, type)
        made = self._work.trainable(attempt.start.config)
        assert isinstance(made, Trainable)
        return made

    def _restore(self, trainable: Trainable, attempt: TrialAttempt) -> None:
        start = attempt.start
        if start.restore_from:
            with local_folder(start.restore_from) as folder:
                load_state(trainable, folder)
        trainable._iteration = start.iteration
        trainable._time_total = start.time_total_s

    def _step(self, trainable: Trainable, attempt: TrialAttempt) -> None:
        logs = any(
            getattr(type(trainable), name) is not getattr(Trainable, name) for name in ("log_result", "_log_result")
        )
        attempt.listen()
        while True:
            result = trainable.advance()
            if logs:
                trainable.log_result(result)
            is_done = bool(result.get("done"))
            attempt.iteration = trainable.iteration
            path = attempt.keep_now() if self._is_save_due(trainable, result, is_done) else ""
            result.pop("should_checkpoint", None)
            if not is_done:
                result.pop("done", None)
            attempt.tell(flatten_metrics(result), path)
            if is_done:
                return

    def _is_save_due(self, trainable: Trainable, result: dict[str, Any], is_done: bool) -> bool:
        every = self._work.checkpoint_every
        is_turn = bool(every) and trainable.iteration % every == 0
        return is_turn or bool(result.get("should_checkpoint")) or (is_done and self._work.checkpoint_at_end)

    def _retire(self, trainable: Trainable, *, may_stay: bool) -> None:
        """Clean up after a trial, or keep its object for the next trial if that is enabled and its class supports it.

        It must be enabled, because many `reset_config` methods expect a new configuration of the same trial, and would
        keep the state that the previous trial learned.
        """
        if may_stay and type(trainable).reset_config is not Trainable.reset_config and self._work.reuse == "always":
            self._spare = trainable
        else:
            trainable.stop()

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.stop()


def _metrics_of(returned: Any, how: str = "yielded") -> dict[str, Any]:
    """Return the metrics that a function returned or yielded; a bare number is `_metric`, as in Ray Tune.

    Raises:
        UsageError: it is neither a number nor a dictionary (`invalid-value`).
    """
    if isinstance(returned, dict):
        return returned
    if isinstance(returned, Number):
        return {"_metric": returned}
    hint = f"{how.removesuffix('ed')} {{'loss': 0.1}}, say"
    raise UsageError(
        f"the function {how} {returned!r:.80}, neither metrics nor a number", hint=hint, code="invalid-value"
    )


def describe_error(error: BaseException) -> str:
    """Return the traceback of a trial's error, beginning with the trial's code."""
    own: TracebackType | None = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename.startswith(_OWN_CODE):
        own = own.tb_next
    return "".join(traceback.format_exception(type(error), error, own or error.__traceback__))
