"""Callback that saves checkpoints, removes old ones and measures how long a save takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from windlass import report
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.checkpoint.listing import to_remove
from windlass.train.checkpoint.protocol import CheckpointStore, Committed, PendingSave
from windlass.train.errors import TrainingError
from windlass.train.optim.local import local_part
from windlass.train.parallel.compiling import cache_artifacts, load_artifacts
from windlass.train.progress import is_due

__all__ = ["Checkpointer"]

_COMPILED = "compiled.bin"


@dataclass(frozen=True, slots=True)
class _Moment:
    """Position in training at a save."""

    step: int = 0
    tokens: int = 0
    epoch: int = 0


class Checkpointer(TrainerCallback):
    """Callback that requests saves when they are due, and performs those that all processes agreed on.

    At most one save runs at a time: the next one waits for it.

    Attributes:
        save_s: seconds from the start of the last save to its commit; None before the first.
        last_path: the last commit; empty before the first.
        kept: small files that every checkpoint holds, by name.
        keeps_compiled: whether torch.compile's cache is saved with each checkpoint, for the next start.
    """

    priority = -100

    def __init__(
        self,
        store: CheckpointStore,
        config: CheckpointerConfig | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.config = store, config or CheckpointerConfig()
        self.save_s: float | None = None
        self.last_path = ""
        self.keeps_compiled = False
        self.kept: Mapping[str, bytes] = {}
        self._now = now
        self._before = _Moment()
        self._saved: tuple[int, bool] | None = None
        self._pending: PendingSave | None = None
        self._began_at = self._last_at = now()

    @property
    def is_done(self) -> bool:
        """Return whether a background save has finished but not been collected yet."""
        return self._pending is not None and self._pending.is_done()

    def on_load(self, path: str) -> None:
        """Record the loaded checkpoint, so that it is not saved again."""
        for item in self.store.committed():
            if item.path == path and item.step == self.trainer.step:
                self._saved, self.last_path = (item.step, item.is_permanent), path
                self._take_compiled(path)

    def on_start(self) -> None:
        """Start counting intervals at the current position."""
        self._before, self._last_at = self._moment(), self._now()
        if self.config.at_start and self.trainer.step == 0:
            self.trainer.request_save()

    def on_step_end(self) -> None:
        """Request the saves that are due."""
        config, before, now = self.config, self._before, self._moment()
        self._before = now
        if config.every is not None and is_due(config.every, before, now):
            self.trainer.request_save()
        elif (config.ephemeral_every is not None and is_due(config.ephemeral_every, before, now)) or self._is_time():
            self.trainer.request_save(is_permanent=False)

    def save(self, *, is_permanent: bool) -> None:
        """Save a checkpoint of this step unless there is one. Collective; blocks until the weights may change again.

        Raises:
            TrainingError: a weight is not finite, and `stop_on_nan` is set.
        """
        trainer = self.trainer
        if trainer.step == 0 and not (is_permanent and self.config.at_start):
            return
        if self._saved is not None and self._saved[0] == trainer.step and self._saved[1] >= is_permanent:
            return
        self.finish()
        if not self._has_finite_weights():
            return
        report.progress("save", step=trainer.step)
        self._began_at = self._last_at = self._now()
        self._pending = self.store.save(
            trainer.module.state_dict(),
            trainer.state_dict(),
            step=trainer.step,
            tokens=trainer.tokens,
            config=trainer.config,
            is_permanent=is_permanent,
            is_async=self.config.is_async,
            extra={**self.kept, **self._compiled()},
        )
        self._saved = (trainer.step, is_permanent)
        if not self.config.is_async:
            self.finish()

    def finish(self) -> None:
        """Wait for the running save, then remove checkpoints that retention does not keep. Collective."""
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        committed = pending.wait()
        self.save_s = self._now() - self._began_at
        self.last_path = committed.path
        surplus = to_remove(self.store.committed(), committed, keep=self.config.keep)
        for item in self._not_held(surplus):
            self.store.drop(item.path)
        for callback in list(self.trainer.callbacks.values()):
            callback.on_save(committed.path, committed.step)
        report.progress("step", step=self.trainer.step)

    def _not_held(self, surplus: list[Committed]) -> list[Committed]:
        """Return the checkpoints that no evaluation waits for; a held one is dropped after a later save. Collective."""
        if not surplus or not report.is_active():
            return surplus
        world = self.trainer.world
        held = world.from_main(report.held_checkpoints() if world.is_main else frozenset())
        return [item for item in surplus if item.path not in held]

    def _compiled(self) -> dict[str, bytes]:
        """Return this process's compiler cache; it is identical on all processes."""
        made = cache_artifacts() if self.keeps_compiled and self.trainer.world.is_main else None
        return {} if made is None else {_COMPILED: made}

    def _take_compiled(self, path: str) -> None:
        """Load the compiler's cache before the first batch.

        It is loaded only from this run's folder, since its content is executed.
        """
        made = self.store.read_extra(path, _COMPILED) if self.keeps_compiled else None
        if made is not None:
            load_artifacts(made)

    def _has_finite_weights(self) -> bool:
        """Return whether all weights are finite. Collective."""
        trainer = self.trainer
        weights = [local_part(weight.detach()) for weight in trainer.module.model.parameters()]
        norms = torch._foreach_norm([weight for weight in weights if weight.numel()], ord=float("inf"))
        num_bad = sum(int(not torch.isfinite(norm)) for norm in norms)
        if trainer.world.sum_on_host([num_bad])[0] == 0:
            return True
        if trainer.stop_on_nan:
            raise TrainingError(
                f"weights after step {trainer.step} are NaN or infinite; no checkpoint was saved",
                hint="resume from the last checkpoint with a lower `optim.lr`",
                code="loss-not-finite",
            )
        return False

    def _is_time(self) -> bool:
        """Return whether a save is due by rank 0's clock or windlass's request; a running save satisfies both."""
        if not self.trainer.world.is_main or self._pending is not None:
            return False
        every_s = self.config.every_time
        return (every_s is not None and self._now() - self._last_at >= every_s) or report.should_checkpoint()

    def _moment(self) -> _Moment:
        trainer = self.trainer
        return _Moment(trainer.step, trainer.tokens, trainer.epoch)
