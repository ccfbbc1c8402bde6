"""A task that takes a millisecond a step: points on a plane, and which side of a line they are on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.checkpoint.protocol import Committed
from windlass.train.data.protocol import NotReady, Share
from windlass.train.modules.basic import BasicModule
from windlass.train.parallel.world import World

Points = tuple[Tensor, Tensor]
QUIET: dict[str, TrainerCallback | None] = {"console": None, "speed": None, "garbage": None}


class PointLoader:
    """Batches of points, a function of their number; remembers which ones it gave."""

    def __init__(self, *, share: Share | None = None, rows: int = 8, batches_per_epoch: int | None = 5) -> None:
        self.share, self.rows, self.batches_per_epoch = share or Share(), rows, batches_per_epoch
        self.next = 0
        self.given: list[int] = []

    def __iter__(self) -> Iterator[Points]:
        while True:
            number = self.next
            self.next += 1
            self.given.append(number)
            x_BF = torch.randn(self.rows, 2, generator=torch.Generator().manual_seed(number))
            mine_BF = x_BF[self.share.rank :: self.share.world]
            yield mine_BF, (mine_BF.sum(dim=1) > 0).long()

    def state_dict(self) -> Mapping[str, int | str]:
        return {"next": self.next}

    def load_state_dict(self, state: Mapping[str, int | str]) -> None:
        self.next = int(state["next"])


class LatePointLoader(PointLoader):
    """Points that are late: each batch is there only after a number of requests for it."""

    def __init__(self, waits: int, *, share: Share | None = None) -> None:
        super().__init__(share=share)
        self.waits, self.waited = waits, 0

    def __iter__(self) -> Iterator[Points | NotReady]:  # type: ignore[override]  # it may wait
        batches = super().__iter__()
        while True:
            while self.is_late():
                self.waited += 1
                yield NotReady.BATCH
            yield next(batches)

    def is_late(self) -> bool:
        return self.waited < self.waits * (self.next + 1)


def point_model(seed: int = 0, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2))


def point_loss(model: nn.Module, batch: Points) -> tuple[Tensor, float]:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="sum"), float(len(batch[1]))


def point_module(world: World | None = None, *, dropout: float = 0.0, lr: float = 1e-2) -> BasicModule[Points]:
    model = point_model(dropout=dropout)
    return BasicModule(model, torch.optim.AdamW(model.parameters(), lr=lr), point_loss, world=world)


class Diary(TrainerCallback):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.hooks: list[str] = []
        self.metrics: dict[int, dict[str, float]] = {}
        self.saved: list[int] = []

    def on_attach(self) -> None:
        self.hooks.append("attach")

    def on_load(self, path: str) -> None:
        self.hooks.append("load")

    def on_start(self) -> None:
        self.hooks.append("start")

    def on_epoch(self, epoch: int) -> None:
        self.hooks.append(f"epoch {epoch}")

    def on_step_start(self, batch: Any) -> None:
        self.hooks.append(f"step {self.trainer.step + 1}")

    def on_optim(self) -> None:
        self.hooks.append("optim")

    def on_step_end(self) -> None:
        self.hooks.append(f"end of step {self.trainer.step}")

    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self.hooks.append(f"metrics {step}")
        self.metrics[step] = dict(metrics)

    def on_save(self, path: str, step: int) -> None:
        self.hooks.append(f"save {step}")
        self.saved.append(step)

    def on_error(self, error: BaseException) -> None:
        self.hooks.append(f"error {type(error).__name__}")

    def on_end(self) -> None:
        self.hooks.append("end")


class _Done:
    def __init__(self, committed: Committed) -> None:
        self.committed = committed
        self.is_finished = True

    def is_done(self) -> bool:
        return self.is_finished

    def wait(self) -> Committed:
        return self.committed


class MemoryStore:
    """Checkpoints in memory; copies tensors when they are saved."""

    path = "memory"

    def __init__(self) -> None:
        self.kept: dict[str, tuple[Committed, dict[str, dict[str, Tensor]], dict[str, Any]]] = {}
        self.saves: list[tuple[int, bool]] = []
        self.dropped: list[int] = []
        self.extras: dict[str, dict[str, bytes]] = {}
        self.pending: _Done | None = None

    def committed(self) -> Sequence[Committed]:
        return sorted((entry[0] for entry in self.kept.values()), key=lambda item: item.step)

    def save(
        self,
        state: Mapping[str, Any],
        trainer: Mapping[str, Any],
        *,
        step: int,
        tokens: int,
        config: Mapping[str, Any],
        is_permanent: bool,
        is_async: bool,
        extra: Mapping[str, bytes] | None = None,
    ) -> _Done:
        committed = Committed(path=f"memory/step-{step}", step=step, tokens=tokens, is_permanent=is_permanent)
        copies = {
            section: {name: value.detach().clone() for name, value in part.items()} for section, part in state.items()
        }
        self.kept[committed.path] = (committed, copies, dict(trainer))
        self.saves.append((step, is_permanent))
        self.extras[committed.path] = dict(extra or {})
        self.pending = _Done(committed)
        return self.pending

    def load(self, path: str, state: Mapping[str, Any], *, is_strict: bool = True) -> Mapping[str, Any]:
        _, copies, trainer = self.kept[path]
        with torch.no_grad():
            for section, part in state.items():
                for name, value in part.items():
                    value.copy_(copies[section][name])
        return trainer

    def read_extra(self, path: str, name: str) -> bytes | None:
        return self.extras[path].get(name)

    def drop(self, path: str) -> None:
        self.dropped.append(self.kept.pop(path)[0].step)
