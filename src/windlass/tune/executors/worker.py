"""A worker: takes one attempt after another from its channel and runs each in this thread.

The same loop serves every executor; what differs is the channel. A worker ends when told to leave or when the channel
closes.
"""

from __future__ import annotations

import inspect
import os
import traceback
from numbers import Number
from types import TracebackType
from typing import Any, Protocol

from windlass.core.errors import UsageError
from windlass.tune.executors.attempt import TrialAttempt
from windlass.tune.executors.channel import ChannelClosed, WorkerChannel, from_message
from windlass.tune.executors.protocol import AttemptOutcome, StartAttempt, Work
from windlass.tune.storage import local_folder
from windlass.tune.trainable.capabilities import is_class
from windlass.tune.trainable.class_api import Trainable
from windlass.tune.trainable.metrics import flatten_metrics
from windlass.tune.trainable.saving import load_state, save_state
from windlass.tune.trainable.session import TrialHalted, enter_session

__all__ = ["Observer", "Worker"]

_OWN_CODE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class Observer(Protocol):
    """Is told what a worker does; for logs."""

    def began(self, trial: str, attempt: int) -> None:
        """An attempt begins."""

    def told(self) -> None:
        """It reported."""

    def ended(self) -> None:
        """It is over."""


class Worker:
    """Runs trials that a channel brings.

    Args:
        work: of the sweep; its trainable is at hand here.
        observer: is told what happens.
        passes_interrupts: Ctrl-C in a trial's code ends the worker, and is no error of the trial.
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
        """Serve until told to leave, or until the channel closes, or for one attempt only; blocks."""
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
        """Run one attempt to its end, which it tells as its last message.

        Raises:
            ChannelClosed: the executor is gone; the trial's code has been ended.
        """
        told = None if self._observer is None else self._observer.told
        attempt = TrialAttempt(self._channel, self._work, start, on_report=told)
        if self._observer is not None:
            self._observer.began(start.trial, start.attempt)
        folder = os.getcwd()
        enter_session(attempt)
        try:
            how, error, kind = self._run(attempt)
        finally:
            enter_session(None)
            os.chdir(folder)  # the next trial begins where this one did
            if self._observer is not None:
                self._observer.ended()
        if attempt.is_cut:
            raise ChannelClosed("the executor is gone")
        attempt.end(how, error, kind)

    def _run(self, attempt: TrialAttempt) -> tuple[str, str, str]:
        """(how it ended, traceback, name of the error)."""
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
            for said in returned:
                attempt.report(_metrics_of(said))
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
        """Clean up after a trial, or keep its object for the next one where that is wanted and its class can do it.

        Only where it is wanted: many a `reset_config` was written for another configuration of the same trial, and
        keeps what the trial before has learned.
        """
        if may_stay and type(trainable).reset_config is not Trainable.reset_config and self._work.reuse == "always":
            self._spare = trainable
        else:
            trainable.stop()

    def _drop_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.stop()


def _metrics_of(said: Any, how: str = "yielded") -> dict[str, Any]:
    """What a function returned or yielded; a mere number is the metric `_metric`, as in Ray Tune.

    Raises:
        UsageError: it is neither a number nor a dictionary (`bad-value`).
    """
    if isinstance(said, dict):
        return said
    if isinstance(said, Number):
        return {"_metric": said}
    hint = f"{how.removesuffix('ed')} {{'loss': 0.1}}, say"
    raise UsageError(f"the function {how} {said!r:.80}, neither metrics nor a number", hint=hint, code="bad-value")


def describe_error(error: BaseException) -> str:
    """The traceback of a trial's error, from the trial's own code on."""
    own: TracebackType | None = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename.startswith(_OWN_CODE):
        own = own.tb_next
    return "".join(traceback.format_exception(type(error), error, own or error.__traceback__))
