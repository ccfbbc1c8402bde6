"""The trainer: a loop around a module and a loader, with callbacks and checkpoints."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

import torch
from torch import Tensor

from windlass.core.errors import UsageError
from windlass.train.callbacks.build import mandatory_callbacks
from windlass.train.callbacks.checkpointer import Checkpointer
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.checkpoint.files import open_files
from windlass.train.checkpoint.lock import sole_trainer
from windlass.train.checkpoint.protocol import CheckpointStore
from windlass.train.checkpoint.reading import CONFIG_FILE, CheckpointReader
from windlass.train.checkpoint.source import CheckpointSource, LoadedCheckpoint, load_newest, resolve_load
from windlass.train.checkpoint.store import FolderStore, open_store
from windlass.train.data.protocol import CountsPasses, Loader
from windlass.train.duration import Duration
from windlass.train.errors import CheckpointError
from windlass.train.loop import Loop
from windlass.train.metrics import MetricStore, Reduce
from windlass.train.modules.protocol import TrainModule
from windlass.train.optim.schedule_config import ScheduleConfig
from windlass.train.optim.schedules import Rates, schedule_function
from windlass.train.parallel.world import World
from windlass.train.progress import is_reached
from windlass.train.stopping import StopReason, StopRequests

__all__ = ["Outcome", "Trainer", "load_first_state"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of `Trainer.fit`.

    Attributes:
        end: finished: the length (or `stop`) is reached; stopped: ended earlier, can be resumed.
        reason: why it stopped; empty when finished.
        checkpoint: the last committed checkpoint; empty if there is none.
    """

    end: Literal["finished", "stopped"]
    step: int
    tokens: int
    reason: str = ""
    checkpoint: str = ""

    @property
    def is_finished(self) -> bool:
        """Return whether training is complete."""
        return self.end == "finished"


class Trainer(Generic[T]):
    """Trainer that trains a module on the batches from a loader; every part can be replaced.

    Args:
        module: model, loss and optimiser.
        loader: endless batches.
        duration: length of the run; schedules end there.
        stop: stop earlier, with schedules unchanged.
        schedule: a config, or a function from a step's number and the tokens up to its end to a share of the peak
            learning rate; if None, constant at the peak.
        callbacks: callbacks by name. Mandatory ones (`console`, `speed`, `garbage`, `checkpointer`, and `report` under
            windlass) are added unless their name is here; None disables them.
        store: store for checkpoints; if None, no checkpoints are saved.
        checkpoint: when to save, and what to load first.
        world: processes of this job; if None, a single process on the CPU.
        collect_every: steps between reductions of metrics over processes.
        seed: of all random numbers except the data order.
        config: JSON-safe record of the configuration, saved in checkpoints.
        stop_on_nan: raise when a loss is not finite.
        stopper: source of stop requests.

    Attributes:
        step: number of completed steps, over all resumptions.
        tokens: number of tokens in them, as counted by the module, over all processes.
        epoch: number of completed passes over the data.
        step_tokens: tokens of the last step, over all processes.
        data_wait_s: seconds that the last step waited for its batch.
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
        """Callbacks by name, in the order in which their hooks run."""
        return self._callbacks

    @property
    def checkpointer(self) -> Checkpointer | None:
        """Callback that writes checkpoints, or None if there are no checkpoints."""
        found = self._callbacks.get("checkpointer")
        return found if isinstance(found, Checkpointer) else None

    @property
    def is_complete(self) -> bool:
        """Return whether the length of training, or `stop`, has been reached."""
        return is_reached(self.duration, self) or (self.stop is not None and is_reached(self.stop, self))

    def step_at(self, end: Duration) -> int | None:
        """Return the step at which a length is reached with the current batch size, or None if unknown."""
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
        """Return whether this process has received a stop request; other processes may not have."""
        return self._loop.agreed_stop is not None or self.stopper.reason() is not None

    def add_callback(self, name: str, callback: TrainerCallback) -> None:
        """Add a callback. This is possible at any time.

        Raises:
            UsageError: the name is taken.
        """
        if name in self._callbacks:
            raise UsageError(f"duplicate callback {name}", hint="use another name", code="already-exists")
        callback.trainer = self
        self._callbacks[name] = callback
        ordered = sorted(self._callbacks.items(), key=lambda item: (-item[1].priority, item[0]))
        self._callbacks = dict(ordered)
        if self._is_attached:
            callback.on_attach()

    def fit(self) -> Outcome:
        """Train until the end, a stop or an error. Collective, blocking.

        May be called again after a stop.

        Raises:
            TrainingError: a loss that is not finite, corrupt data.
            CheckpointError: the checkpoint cannot be loaded.
            PreconditionError: another trainer uses the checkpoint folder.
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
        """Record a metric for the current (or last) step; a tensor stays on its device.

        Args:
            name: name such as `train/loss`.
            reduce: reduction over processes: mean, sum (over data-parallel ones), max, min, or none (rank 0's value).
        """
        self.metrics.record(self._loop.running_step, name, value, reduce)

    def request_stop(self, reason: StopReason = StopReason.REQUEST) -> None:
        """Stop after the current step and save a checkpoint; a request on one process is enough."""
        self.stopper.request(reason)

    def request_save(self, *, is_permanent: bool = True) -> None:
        """Write a checkpoint after the current step; a request on one process is enough."""
        self._loop.request_save(is_permanent=is_permanent)

    def agree_on_stop(self) -> bool:
        """Return whether any process has received a stop request. Collective. For loops such as evaluation."""
        return self._loop.agree_on_stop()

    def state_dict(self) -> dict[str, Any]:
        """Return the trainer's part of a checkpoint, JSON-safe. Collective."""
        return self._loop.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position in training."""
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


def load_first_state(trainer: Trainer[Any]) -> str:
    """Load the state that `checkpoint.load` selects and return its path, which is empty for a new start. Collective.

    Raises:
        CheckpointError: none was found with the strategy `always`, or it cannot be loaded.
        SpecError: it was trained on different data, and `data.allow_changes` is false.
    """
    source = resolve_load(trainer.checkpoint.load, cast("FolderStore | None", trainer.store))
    if source is None:
        wanted = trainer.checkpoint.load
        left = trainer.store.committed() if wanted.strategy == "never" and trainer.store is not None else ()
        if left and trainer.world.is_main:
            sys.stderr.write(
                f"the folder contains a run up to step {left[-1].step}; a start without "
                "`checkpoint.load.strategy=never` would resume from it; use another `checkpoint.folder` to keep them apart\n"
            )
        if wanted.path and wanted.strategy != "never" and trainer.world.is_main:
            sys.stderr.write(f"no checkpoint at {wanted.path} (`checkpoint.load.path`); starting from scratch\n")
        return ""
    if source.kind in ("hf", "dcp"):
        return _warm_start(trainer, source)
    loaded = _load(trainer, source)
    for note in (*source.notes, *loaded.notes):
        if trainer.world.is_main:
            sys.stderr.write(f"skipped a checkpoint: {note}\n")
    if trainer.world.is_main and (source.kind == "checkpoint" or isinstance(trainer.store, FolderStore)):
        for line in _changed_code(trainer.config.get("code", {}), loaded.path):
            sys.stderr.write(line)
    if source.trainer is not False and loaded.trainer:  # an imported model has none
        seed = _data_seed(trainer)
        trainer.load_state_dict(loaded.trainer)
        if seed != (kept := _data_seed(trainer)) and trainer.world.is_main:
            sys.stderr.write(
                f"using the data order of the checkpoint's seed {kept}, not of this recipe's seed {seed}\n"
            )
    return loaded.path


def _changed_code(code: Mapping[str, Mapping[str, str]], path: str) -> Iterator[str]:
    """Yield a message for each part of the user's code that has changed since the checkpoint was written.

    Training continues.
    """
    before = CheckpointReader.open(open_files(path)).read_object(CONFIG_FILE).get("code") or {}
    name = path.rstrip("/").rpartition("/")[2]
    for where, own in code.items():
        old = before.get(where)
        if old is None or old.get("target") != own["target"]:
            was = "windlass's own" if old is None else old.get("target")
            yield f"{where} changed from {was} in {name} to {own['target']}\n"
        elif old.get("sha256") != own["sha256"]:
            yield f"the code of {where} ({own['target']}) changed since {name}; training continues with the new code\n"


def _data_seed(trainer: Trainer[Any]) -> Any:
    return trainer.loader.state_dict().get("seed")


def _load(trainer: Trainer[Any], source: CheckpointSource) -> LoadedCheckpoint:
    """Load the module's state from the first undamaged checkpoint."""
    store = cast("FolderStore | None", trainer.store)
    if store is None or source.kind != "own":
        verifies = trainer.checkpoint.load.verifies
        store = open_store(source.paths[0].rpartition("/")[0] or ".", trainer.world, verifies=verifies)
    state = trainer.module.state_dict()
    if source.optim is False or (source.optim is None and not _has_optimizer(source)):
        state.pop("optim", None)
    try:
        loaded = load_newest(store, source.paths, state, is_strict=source.is_strict)
    except CheckpointError as error:
        if error.code != "checkpoint-mismatch" or "guard" not in state:
            raise
        state.pop("guard")  # `optim.skip` was not set for that checkpoint: its history starts empty
        loaded = load_newest(store, source.paths, state, is_strict=source.is_strict)
    trainer.module.load_state_dict(state)
    return loaded


def _has_optimizer(source: CheckpointSource) -> bool:
    return "optim" in CheckpointReader.open(open_files(source.paths[0])).layout.tensors


def _warm_start(trainer: Trainer[Any], source: CheckpointSource) -> str:
    """Load weights from another model; training begins at its first step."""
    from windlass.train.hf.warm_start import warm_start  # lazy: few runs need it

    wanted = trainer.checkpoint.load
    if wanted.trainer:
        raise CheckpointError(
            f"{wanted.path} has no trainer state to load",
            hint="set `checkpoint.load.trainer=null` to start at the first step",
            code="checkpoint-incomplete",
        )
    state = trainer.module.state_dict()
    path, _ = warm_start(state, wanted.path, optim=wanted.optim, is_strict=wanted.is_strict)
    trainer.module.load_state_dict(state)
    return path
