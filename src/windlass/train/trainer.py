"""The trainer: the loop around a module and a loader, and what hangs on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor

from windlass.core.errors import UsageError
from windlass.train.callbacks.build import mandatory_callbacks
from windlass.train.callbacks.checkpointer import Checkpointer
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.checkpoint.protocol import CheckpointStore
from windlass.train.checkpoint.storage.lock import sole_trainer
from windlass.train.data.protocol import CountsPasses, Loader
from windlass.train.duration import Duration
from windlass.train.loop import Loop
from windlass.train.metrics import MetricStore, Reduce
from windlass.train.modules.protocol import TrainModule
from windlass.train.optim.lengths import Rates
from windlass.train.optim.schedule_config import ScheduleConfig
from windlass.train.optim.schedules import schedule_function
from windlass.train.parallel.world import World
from windlass.train.progress import is_reached
from windlass.train.resume import load_first_state
from windlass.train.stopping import StopReason, StopRequests

__all__ = ["Outcome", "Trainer"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How `Trainer.fit` ended.

    Attributes:
        end: finished: its length (or `stop`) is reached; stopped: left before, to go on later.
        reason: why it stopped; empty when finished.
        checkpoint: the last one that was committed; empty without one.
    """

    end: Literal["finished", "stopped"]
    step: int
    tokens: int
    reason: str = ""
    checkpoint: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.end == "finished"


class Trainer(Generic[T]):
    """Drives a module over a loader's batches; every part can be another one.

    Args:
        module: model, loss and optimiser.
        loader: batches without end.
        duration: length of the run; schedules end there.
        stop: leave earlier, with schedules unchanged.
        schedule: a config, or a function from a step's number and the tokens up to its end to a share of the peak
            learning rate; None: always all of it.
        callbacks: by name. Those that every run has (`console`, `speed`, `garbage`, `checkpointer`, in windlass
            `report`) are added unless their name is here; None in their place leaves them out.
        store: where checkpoints go; None: there are none.
        checkpoint: when they are written and what is loaded first.
        world: the processes of this job; None: this one alone, on the CPU.
        collect_every: steps between reductions of metrics over processes.
        seed: of everything random that is no data.
        config: the record of how all this was made, JSON-safe; goes into checkpoints.
        stop_on_nan: raise when a loss is no number.
        stopper: who hears that training shall end.

    Attributes:
        step: steps that are done, over all resumptions.
        tokens: what the module counted in them, over all processes.
        epoch: passes over the data that are done.
        step_tokens: of the last step, over all processes.
        data_wait_s: how long the last step waited for its batch.
        batch: this process's part of the last step's batch.
    """

    def __init__(
        self,
        module: TrainModule[T],
        loader: Loader[T],
        *,
        duration: Duration,
        stop: Duration | None = None,
        schedule: ScheduleConfig | Callable[[int, int], float] | None = None,
        callbacks: Mapping[str, TrainerCallback | None] | None = None,
        store: CheckpointStore | None = None,
        checkpoint: CheckpointerConfig | None = None,
        world: World | None = None,
        collect_every: int = 10,
        seed: int = 0,
        config: Mapping[str, Any] | None = None,
        stop_on_nan: bool = True,
        stopper: StopRequests | None = None,
    ) -> None:
        self.module, self.loader, self.store = module, loader, store
        self.duration, self.stop = duration, stop
        self.schedule = self._schedule(schedule)
        self.checkpoint = checkpoint or CheckpointerConfig()
        self.world = world or World(device=torch.device("cpu"))
        self.collect_every, self.seed, self.config = collect_every, seed, dict(config or {})
        self.stop_on_nan = stop_on_nan
        self.step = self.tokens = self.epoch = 0
        self.step_tokens, self.data_wait_s = 0, 0.0
        self.batch: T | None = None
        self.metrics = MetricStore(self.world)
        self.started_at = time.monotonic()
        self.stopper = stopper or StopRequests(asks_report=self.world.local_rank == 0, save_s=self._save_s)
        self._callbacks: dict[str, TrainerCallback] = {}
        self._is_attached = False
        for name, callback in {**self._default_callbacks(callbacks or {}), **(callbacks or {})}.items():
            if callback is not None:
                self.add_callback(name, callback)
        self._loop = Loop(self)

    @property
    def callbacks(self) -> Mapping[str, TrainerCallback]:
        """All of them, in the order in which their hooks run."""
        return self._callbacks

    @property
    def checkpointer(self) -> Checkpointer | None:
        """The callback that writes checkpoints; None where there are none."""
        found = self._callbacks.get("checkpointer")
        return found if isinstance(found, Checkpointer) else None

    @property
    def is_complete(self) -> bool:
        """Whether its length, or `stop`, is reached."""
        return is_reached(self.duration, self) or (self.stop is not None and is_reached(self.stop, self))

    def step_at(self, end: Duration) -> int | None:
        """The step at which a length is reached if batches stay as they are now; None where nobody knows."""
        if end.unit == "steps":
            return end.value
        if end.unit == "tokens":
            batch_tokens: int | None = getattr(self.loader, "batch_tokens", None)
            return None if not batch_tokens else self.step + max(0, -(-(end.value - self.tokens) // batch_tokens))
        if isinstance(self.loader, CountsPasses):
            return self.step + self.loader.batches_until(end.value, self._loop.position)
        batches = self.loader.batches_per_epoch
        return None if batches is None else end.value * batches

    @property
    def should_stop(self) -> bool:
        """Whether this process heard that training shall end; others may not have yet."""
        return self._loop.agreed_stop is not None or self.stopper.reason() is not None

    def add_callback(self, name: str, callback: TrainerCallback) -> None:
        """Hang a callback on the trainer, at any time.

        Raises:
            UsageError: the name is taken.
        """
        if name in self._callbacks:
            raise UsageError(
                f"there is a callback {name} already", hint="give this one another name", code="callback-name-taken"
            )
        callback.trainer = self
        self._callbacks[name] = callback
        ordered = sorted(self._callbacks.items(), key=lambda item: (-item[1].priority, item[0]))
        self._callbacks = dict(ordered)
        if self._is_attached:
            callback.on_attach()

    def fit(self) -> Outcome:
        """Train until the end, a stop or an error; may be called again after a stop. Collective, blocking.

        Raises:
            TrainingError: a loss that is no number, corrupt data.
            CheckpointError: what should be loaded cannot be.
            PreconditionError: another trainer is at work in the folder of checkpoints.
        """
        with self.stopper.listening(), sole_trainer(self.store, self.world):
            try:
                self._begin()
                reason = self._loop.run()
            except BaseException as error:
                self._loop.leave(error)
                raise
            self._loop.leave(None)
        saved = self.checkpointer.last_path if self.checkpointer is not None else ""
        return Outcome(
            end="finished" if reason is None else "stopped",
            step=self.step,
            tokens=self.tokens,
            reason="" if reason is None else reason.value,
            checkpoint=saved,
        )

    def record(self, name: str, value: float | Tensor, reduce: Reduce = "mean") -> None:
        """Keep a metric of the step that runs (or just ended); a tensor may stay on its device.

        Args:
            name: such as `train/loss`.
            reduce: over processes: mean, sum (of data-parallel ones), max, min, or none (rank 0's value counts).
        """
        self.metrics.record(self._loop.running_step, name, value, reduce)

    def request_stop(self, reason: StopReason = StopReason.REQUEST) -> None:
        """End at the next boundary between steps, with a checkpoint; one process is enough to ask."""
        self.stopper.request(reason)

    def request_save(self, *, is_permanent: bool = True) -> None:
        """Write a checkpoint at the next boundary between steps; one process is enough to ask."""
        self._loop.request_save(is_permanent=is_permanent)

    def agree_on_stop(self) -> bool:
        """Whether any process heard that training shall end. Collective: for loops between steps, such as evaluation."""
        return self._loop.agree_on_stop()

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of the trainer itself, JSON-safe. Collective."""
        return self._loop.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where that state stood."""
        self._loop.load_state_dict(state)

    def _begin(self) -> None:
        if not self._is_attached:
            self._is_attached = True
            for callback in list(self._callbacks.values()):
                callback.on_attach()
            loaded = load_first_state(self)
            if loaded:
                for callback in self._callbacks.values():
                    callback.on_load(loaded)

    def _schedule(self, schedule: ScheduleConfig | Callable[[int, int], float] | None) -> Callable[[int, int], float]:
        if schedule is None or callable(schedule):
            return schedule or (lambda step, tokens: 1.0)
        loader = self.loader
        batches = loader.batches_per_pass if isinstance(loader, CountsPasses) else loader.batches_per_epoch
        rates = Rates(batch_tokens=getattr(loader, "batch_tokens", None), batches_per_epoch=batches)
        return schedule_function(schedule, self.duration, rates)

    def _save_s(self) -> float | None:
        return self.checkpointer.save_s if self.checkpointer is not None else 0.0

    def _default_callbacks(self, named: Mapping[str, TrainerCallback | None]) -> dict[str, TrainerCallback]:
        found = mandatory_callbacks()
        if self.store is not None:
            found["checkpointer"] = Checkpointer(self.store, self.checkpoint)
        return {name: callback for name, callback in found.items() if name not in named}
