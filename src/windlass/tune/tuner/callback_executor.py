"""Executor that passes events to callbacks, for `RunConfig(callbacks=)`.

Callbacks are called between executor and controller, without the controller's knowledge. They get a trial's start and
reports before the controller, and all other events after the controller has handled them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from windlass.tune.controller.controller import Controller, HeadOutcome
from windlass.tune.executors.protocol import (
    AttemptEnded,
    AttemptReported,
    AttemptSaved,
    AttemptStarted,
    Event,
    Executor,
    Go,
    Order,
    Room,
    StartAttempt,
    Work,
)
from windlass.tune.results.columns import NestedMetrics, tag_of
from windlass.tune.trainable.checkpoint import Checkpoint
from windlass.tune.trial import Resources, Trial, TrialStatus

__all__ = ["CallbackExecutor", "LiveTrial", "LiveTrials"]

SHOULD_CHECKPOINT = "should_checkpoint"


class LiveTrial:
    """Trial of a running sweep, using the attribute names of Ray Tune's `Trial`."""

    PENDING, RUNNING, PAUSED = TrialStatus.PENDING, TrialStatus.RUNNING, TrialStatus.PAUSED
    TERMINATED, ERROR = TrialStatus.TERMINATED, TrialStatus.ERROR

    def __init__(self, trial: Trial, trainable_name: str, name_of: Callable[[Any], str] | None, folder: str) -> None:
        self._trial = trial
        self._name_of = name_of
        self._folder = folder
        self.trainable_name = trainable_name

    trial_id = property(lambda self: self._trial.id)
    config = property(lambda self: self._trial.config)
    evaluated_params = property(lambda self: self._trial.assigned)
    status = property(lambda self: self._trial.status)
    resources = property(lambda self: self._trial.resources)

    @property
    def experiment_tag(self) -> str:
        """Number and sampled values of the trial as one word."""
        return self._trial.tag or tag_of(self._trial.number, self._trial.assigned)

    @property
    def last_result(self) -> dict[str, Any]:
        """Newest report; empty before the first report."""
        return NestedMetrics(self._trial.last or {})

    @property
    def checkpoint(self) -> Checkpoint | None:
        """Newest checkpoint."""
        saved = self._trial.checkpoint
        return Checkpoint(saved.path) if saved is not None else None

    @property
    def path(self) -> str:
        """Folder for the trial's files, which may not exist yet."""
        return f"{self._folder}/trials/{self.trial_id}"

    logdir = local_path = path

    def is_finished(self) -> bool:
        """Return whether the trial has ended."""
        return self._trial.status.is_over

    def __str__(self) -> str:
        return self._name_of(self) if self._name_of is not None else f"{self.trainable_name}_{self.trial_id}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LiveTrial) and other.trial_id == self.trial_id

    def __hash__(self) -> int:
        return hash(self.trial_id)


class LiveTrials(Sequence[LiveTrial]):
    """All trials of a running sweep, created only when they are iterated over."""

    def __init__(self, trials: Mapping[str, Trial], view: Callable[[Trial], LiveTrial]) -> None:
        self._trials = trials
        self._view = view

    def __len__(self) -> int:
        return len(self._trials)

    def __getitem__(self, index: Any) -> Any:
        found = list(self._trials.values())[index]
        return [self._view(trial) for trial in found] if isinstance(found, list) else self._view(found)

    def __iter__(self) -> Iterator[LiveTrial]:
        return (self._view(trial) for trial in list(self._trials.values()))


class CallbackExecutor:
    """Executor that wraps another one and calls callbacks.

    Args:
        executor: the wrapped executor.
        callbacks: objects with any of the methods of `Callback`.
        view: returns the object that callbacks get for a trial.
    """

    def __init__(self, executor: Executor, callbacks: Sequence[Any], view: Callable[[Trial], LiveTrial]) -> None:
        self.name = executor.name
        self._executor = executor
        self._callbacks = callbacks
        self._view = view
        self._controller: Controller | None = None
        self._told: list[Event] = []
        self._wants_save: set[str] = set()
        self._restored: dict[str, bool] = {}
        self._iteration = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)  # optional methods: reattach, waiting_for

    def open(self, work: Work) -> None:
        """Open the wrapped executor; see `Executor.open`."""
        self._executor.open(work)

    def room(self, resources: Resources) -> Room:
        """Return whether a trial can start; see `Executor.room`."""
        return self._executor.room(resources)

    def start(self, start: StartAttempt) -> None:
        """Start an attempt; see `Executor.start`."""
        self._restored[start.trial] = bool(start.restore_from)
        self._executor.start(start)

    def send(self, order: Order) -> None:
        """Forward an order; an order to continue also requests the checkpoint that a callback has asked for."""
        if order.trial in self._wants_save:
            self._wants_save.discard(order.trial)
            if isinstance(order, Go):
                order = dataclasses.replace(order, saves=True)
        self._executor.send(order)

    def poll(self, timeout_s: float) -> list[Event]:
        """Call callbacks for the previous events, which the controller has now handled, then return new ones."""
        self.tell()
        events = self._executor.poll(timeout_s)
        if events:
            self._iteration += 1
            self._call("on_step_begin")
        for event in events:
            if isinstance(event, AttemptReported):
                self._result(event)
            elif isinstance(event, AttemptStarted) and event.trial in self.trials:
                method = "on_trial_restore" if self._restored.get(event.trial) else "on_trial_start"
                self._call(method, trial=self._view(self.trials[event.trial]))
        self._told = [event for event in events if not isinstance(event, AttemptStarted)]
        return events

    def close(self) -> None:
        """Close the wrapped executor; see `Executor.close`."""
        self._executor.close()

    def set_up(self, **facts: Any) -> None:
        """Call `setup` on each callback."""
        for callback in self._callbacks:
            if hasattr(callback, "setup"):
                callback.setup(**facts)

    def run(self, controller: Controller) -> HeadOutcome:
        """Run a controller that uses this executor."""
        self._controller = controller
        try:
            return controller.run()
        finally:
            self.tell()
            for callback in self._callbacks:
                if hasattr(callback, "on_experiment_end"):
                    callback.on_experiment_end(trials=LiveTrials(self.trials, self._view))

    @property
    def trials(self) -> Mapping[str, Trial]:
        """All trials that the controller has."""
        core = getattr(self._controller, "core", None)
        return core.sweep.trials if core is not None else {}

    def tell(self) -> None:
        """Call callbacks for the events that the controller has handled."""
        told, self._told = self._told, []
        for event in told:
            if getattr(event, "trial", None) in self.trials:
                self._tell(event, self._view(self.trials[event.trial]))  # type: ignore[union-attr]
        if told:
            self._call("on_step_end")

    def _tell(self, event: Event, trial: LiveTrial) -> None:
        if isinstance(event, AttemptSaved):
            self._saved(trial, event.path)
        elif isinstance(event, AttemptReported) and event.saved:
            self._saved(trial, event.saved)
        elif isinstance(event, AttemptEnded) and trial.status is TrialStatus.TERMINATED:
            self._call("on_trial_complete", trial=trial)
        elif isinstance(event, AttemptEnded) and trial.status is TrialStatus.ERROR:
            self._call("on_trial_error", trial=trial)
        elif isinstance(event, AttemptEnded) and event.error:
            self._call("on_trial_recover", trial=trial)

    def _saved(self, trial: LiveTrial, path: str) -> None:
        self._call("on_trial_save", trial=trial)
        self._call("on_checkpoint", trial=trial, checkpoint=Checkpoint(path))

    def _result(self, event: AttemptReported) -> None:
        trial = self.trials.get(event.trial)
        if trial is None or event.attempt != trial.attempt:
            return
        if event.metrics.get("training_iteration", 0) <= trial.iteration:
            return  # a repeated report after a restart
        result = NestedMetrics(event.metrics)
        result.update(trial_id=trial.id, config=trial.config, timestamp=int(time.time()))
        self._call("on_trial_result", trial=self._view(trial), result=result)
        if result.get(SHOULD_CHECKPOINT):
            self._wants_save.add(trial.id)

    def _call(self, method: str, **arguments: Any) -> None:
        trials = LiveTrials(self.trials, self._view)
        for callback in self._callbacks:
            call = getattr(callback, method, None)
            if call is None:
                continue
            try:
                call(iteration=self._iteration, trials=trials, **arguments)
            except Exception as error:
                error.add_note(
                    f"in the callback {type(callback).__name__}.{method}; resume the sweep with Tuner.restore"
                )
                raise
