"""The training loop: fetch, agree, step. Processes coordinate only at the boundary between two steps.

Each boundary has one small host all-reduce: the weight and the tokens of the next batch, requests to stop or to save,
and whether all recorded the same metrics. Metrics are collected, checkpoints written and stops performed only
there, so no process can miss one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.data.protocol import NotReady
from windlass.train.metrics import StepMetrics, refuse_bad_loss
from windlass.train.modules.protocol import HasComponents, StepFacts
from windlass.train.randomness import generator_states, restore_generators
from windlass.train.stopping import StopReason

if TYPE_CHECKING:
    from windlass.train.trainer import Trainer

__all__ = ["Loop"]

T = TypeVar("T")

_REASONS = tuple(StopReason)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Boundary:
    """Values that all processes agreed on at a step boundary."""

    weights: tuple[float, ...]
    tokens: int
    is_ready: bool
    stop: StopReason | None
    is_over: bool
    is_permanent_wanted: bool
    is_ephemeral_wanted: bool
    is_save_done: bool
    is_uniform: bool


class Loop(Generic[T]):
    """State of a trainer while it runs."""

    def __init__(self, trainer: Trainer[T]) -> None:
        self.trainer = trainer
        self.agreed_stop: StopReason | None = None
        self.running_step = 0
        self._wants_permanent = self._wants_ephemeral = False
        self._position: Mapping[str, int | str] | None = None
        self._collected_at = 0
        self._step_s = self._wait_s = 0.0

    def run(self) -> StopReason | None:
        """Train until completion and return None, or until a stop and return the reason. Collective."""
        trainer = self.trainer
        self.agreed_stop = None
        if self._position is not None:
            trainer.loader.load_state_dict(self._position)
        self._position = dict(trainer.loader.state_dict())
        self._collected_at = self.running_step = trainer.step
        self._call("on_start")
        batches = iter(trainer.loader)
        epoch = None
        batch: T | NotReady | None = NotReady.BATCH
        try:
            while True:
                batch = self._fetch(batches, batch)
                boundary = self._agree(batch)
                self._settle(boundary)
                if batch is None or boundary.is_over or boundary.stop is not None:
                    return boundary.stop
                if isinstance(batch, NotReady) or not boundary.is_ready:
                    continue
                if epoch != trainer.epoch:
                    epoch = trainer.epoch
                    self._call("on_epoch", epoch)
                self._step(batch, boundary)
                batch = NotReady.BATCH
        finally:
            _close(batches)

    @property
    def position(self) -> Mapping[str, int | str]:
        """Return the loader's state after the last step, even if more batches have been fetched since."""
        return self._position if self._position is not None else self.trainer.loader.state_dict()

    def request_save(self, *, is_permanent: bool) -> None:
        """Request a checkpoint at the next boundary."""
        if is_permanent:
            self._wants_permanent = True
        else:
            self._wants_ephemeral = True

    def agree_on_stop(self) -> bool:
        """Return whether any process has requested a stop. Collective.

        Once true, it remains true.
        """
        if self.agreed_stop is None:
            mine = self.trainer.stopper.reason()
            flags = [float(mine is reason) for reason in _REASONS]
            self.agreed_stop = _first_reason(self.trainer.world.sum_on_host(flags))
        return self.agreed_stop is not None

    def leave(self, error: BaseException | None) -> None:
        """Run the final hooks of callbacks; errors in them do not hide `error`."""
        trainer = self.trainer
        trainer.stopper.forget()
        if error is None:
            self._call("on_end")
            return
        for callback in list(trainer.callbacks.values()):
            _tell_end(callback, error)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in training at this boundary. Collective."""
        trainer = self.trainer
        return {
            "format": 1,
            "step": trainer.step,
            "tokens": trainer.tokens,
            "epoch": trainer.epoch,
            "seed": trainer.seed,
            "loader": dict(self.position),
            "callbacks": {name: state for name, each in trainer.callbacks.items() if (state := each.state_dict())},
            "random": generator_states(trainer.world),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position in training."""
        trainer = self.trainer
        trainer.loader.load_state_dict(state["loader"])
        self._position = dict(state["loader"])
        trainer.step, trainer.tokens, trainer.epoch = int(state["step"]), int(state["tokens"]), int(state["epoch"])
        for name, part in state.get("callbacks", {}).items():
            if name in trainer.callbacks:
                trainer.callbacks[name].load_state_dict(part)
        restore_generators(state.get("random"), trainer.world)

    def _fetch(self, batches: Iterator[T | NotReady], fetched: T | NotReady | None) -> T | NotReady | None:
        """Return the next batch, or None if training is complete or the loader is exhausted.

        Args:
            fetched: this process's batch, if it has it and others have not.
        """
        trainer = self.trainer
        if not isinstance(fetched, NotReady):
            return fetched
        if trainer.is_complete:
            return None
        began_at = time.perf_counter()
        batch = next(batches, None)
        self._wait_s += time.perf_counter() - began_at
        return batch

    def _agree(self, batch: T | NotReady | None) -> _Boundary:
        """Agree with all processes on the next boundary, by one all-reduce of a few numbers on the host. Collective."""
        trainer = self.trainer
        module, world, checkpointer = trainer.module, trainer.world, trainer.checkpointer
        is_ready = not (batch is None or isinstance(batch, NotReady))
        reason = self.agreed_stop or trainer.stopper.reason(self._step_s)
        digest = trainer.metrics.digest
        weights = self._weights(batch)
        totals = world.sum_on_host(
            [
                0.0 if batch is None or isinstance(batch, NotReady) else module.count(batch),
                float(batch is None),
                float(not is_ready),
                float(self._wants_permanent),
                float(self._wants_ephemeral),
                float(checkpointer is not None and checkpointer.is_done),
                digest,
                digest * digest,
                *(float(reason is each) for each in _REASONS),
                *weights,
            ]
        )
        self._wants_permanent = self._wants_ephemeral = False
        replicas = world.size // world.share.world
        self.agreed_stop = _first_reason(totals[8 : 8 + len(_REASONS)])
        return _Boundary(
            weights=tuple(total / replicas for total in totals[8 + len(_REASONS) :]),
            tokens=round(totals[0] / replicas),
            is_ready=totals[2] == 0,
            is_over=totals[1] > 0,
            is_permanent_wanted=totals[3] > 0,
            is_ephemeral_wanted=totals[4] > 0,
            is_save_done=totals[5] == world.size,
            is_uniform=totals[7] * world.size == totals[6] * totals[6],
            stop=None if totals[1] > 0 else self.agreed_stop,
        )

    def _weights(self, batch: T | NotReady | None) -> tuple[float, ...]:
        """Return this process's weight of each loss component; zeros without a batch."""
        module = self.trainer.module
        if batch is None or isinstance(batch, NotReady):
            return (0.0,) * (len(module.components) if isinstance(module, HasComponents) else 1)
        weight = module.weigh(batch)
        return weight if isinstance(weight, tuple) else (weight,)

    def _settle(self, boundary: _Boundary) -> None:
        """Collect metrics, save and stop, as agreed at the boundary. Collective."""
        trainer, checkpointer = self.trainer, self.trainer.checkpointer
        leaves = boundary.is_over or boundary.stop is not None
        saves = boundary.is_permanent_wanted or boundary.is_ephemeral_wanted or leaves
        if saves or trainer.step - self._collected_at >= trainer.collect_every:
            self._collect(is_uniform=boundary.is_uniform)
        if checkpointer is None:
            return
        if boundary.is_save_done:
            checkpointer.finish()
        if saves:
            checkpointer.save(is_permanent=boundary.is_permanent_wanted or boundary.is_over)
        if leaves:
            checkpointer.finish()

    def _collect(self, *, is_uniform: bool) -> None:
        trainer = self.trainer
        self._collected_at = trainer.step
        steps = trainer.metrics.collect(is_uniform=is_uniform)
        if trainer.world.is_main:
            self._tell(steps)
        if trainer.stop_on_nan:
            refuse_bad_loss(steps)

    def _tell(self, steps: Sequence[StepMetrics]) -> None:
        for callback in list(self.trainer.callbacks.values()):
            for entry in steps:
                callback.on_metrics(entry.step, entry.values)

    def _step(self, batch: T, boundary: _Boundary) -> None:
        """Take a step of the optimizer."""
        trainer, module = self.trainer, self.trainer.module
        began_at = time.perf_counter()
        self.running_step = trainer.step + 1
        trainer.batch = batch
        trainer.data_wait_s, self._wait_s = self._wait_s, 0.0
        self._call("on_step_start", batch)
        facts = StepFacts(
            step=self.running_step,
            tokens=trainer.tokens,
            total_weight=boundary.weights[0],
            total_weights=boundary.weights,
            lr_factor=trainer.schedule(self.running_step, trainer.tokens + boundary.tokens),
        )
        for name, value in module.train_batch(batch, facts).items():
            trainer.record(f"train/{name}", value, "sum")
        self._call("on_optim")
        for name, value in module.optim_step(facts).items():
            trainer.record(f"optim/{name}", value, "none")
        trainer.record("optim/lr", module.optimizer.param_groups[0]["lr"], "none")
        trainer.step, trainer.step_tokens = self.running_step, boundary.tokens
        trainer.tokens += boundary.tokens
        self._position = dict(trainer.loader.state_dict())
        trainer.epoch = _epoch(trainer.step, trainer.loader.batches_per_epoch, self._position)
        self._call("on_step_end")
        self._step_s = time.perf_counter() - began_at

    def _call(self, hook: str, *args: Any) -> None:
        for callback in list(self.trainer.callbacks.values()):
            getattr(callback, hook)(*args)


def _tell_end(callback: TrainerCallback, error: BaseException) -> None:
    try:
        callback.on_error(error)
        callback.on_end()
    except Exception as second:  # noqa: BLE001 - the first error matters more
        error.add_note(f"{type(callback).__name__} then failed too: {second}")


def _first_reason(counts: Sequence[float]) -> StopReason | None:
    return next((reason for reason, count in zip(_REASONS, counts, strict=True) if count > 0), None)


def _epoch(step: int, batches_per_epoch: int | None, position: Mapping[str, int | str]) -> int:
    """Return the number of completed passes, as the loader reports it or else from its number of batches."""
    said = position.get("epoch")
    if isinstance(said, int):
        return said
    return step // batches_per_epoch if batches_per_epoch else 0


def _close(batches: object) -> None:
    close = getattr(batches, "close", None)
    if callable(close):
        close()
