"""When saves happen, and what stays."""

from __future__ import annotations

from typing import Any

import pytest

from tests.train.tiny import QUIET, Diary, MemoryStore, PointLoader, point_module
from windlass import report
from windlass.train.callbacks import checkpointer as checkpointing
from windlass.train.callbacks.checkpointer import Checkpointer
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.duration import Duration
from windlass.train.trainer import Trainer


def run(steps: int, store: MemoryStore, config: CheckpointerConfig, **callbacks: TrainerCallback) -> Trainer[Any]:
    trainer = Trainer(
        point_module(),
        PointLoader(),
        duration=Duration.steps(steps),
        store=store,
        checkpoint=config,
        callbacks={**QUIET, **callbacks},
    )
    trainer.fit()
    return trainer


@pytest.mark.parametrize(
    ("config", "saves"),
    [
        (CheckpointerConfig(every=None), [(7, True)]),
        (CheckpointerConfig(every=Duration.steps(3)), [(3, True), (6, True), (7, True)]),
        (CheckpointerConfig(every=Duration.steps(7)), [(7, True)]),
        (CheckpointerConfig(every=Duration.tokens(20)), [(3, True), (5, True), (7, True)]),
        (CheckpointerConfig(every=Duration.epochs(1)), [(5, True), (7, True)]),
        (CheckpointerConfig(every=None, at_start=True), [(0, True), (7, True)]),
        (
            CheckpointerConfig(every=Duration.steps(4), ephemeral_every=Duration.steps(2)),
            [(2, False), (4, True), (6, False), (7, True)],
        ),
    ],
)
def test_saves_come_when_they_are_due(config: CheckpointerConfig, saves: list[tuple[int, bool]]) -> None:
    store = MemoryStore()
    run(7, store, config)
    assert store.saves == saves


def test_an_ephemeral_one_goes_when_the_next_is_there_and_permanent_ones_stay() -> None:
    store = MemoryStore()
    run(7, store, CheckpointerConfig(every=Duration.steps(4), ephemeral_every=Duration.steps(1)))
    assert [item.step for item in store.committed()] == [4, 7]
    assert store.dropped == [1, 2, 3, 5, 6]


def test_keep_holds_the_newest_permanent_ones() -> None:
    store = MemoryStore()
    run(7, store, CheckpointerConfig(every=Duration.steps(1), keep=3))
    assert [item.step for item in store.committed()] == [5, 6, 7]


def test_a_checkpoint_stays_until_its_evaluation_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    asked: list[int] = []

    def held() -> frozenset[str]:
        asked.append(max(item.step for item in store.committed()))
        waiting = {2} if asked[-1] < 6 else set()
        return frozenset(item.path for item in store.committed() if item.step in waiting)

    monkeypatch.setattr(report, "is_active", lambda: True)
    monkeypatch.setattr(report, "held_checkpoints", held)
    run(7, store, CheckpointerConfig(every=Duration.steps(1), keep=1))
    assert [item.step for item in store.committed()] == [7]
    assert store.dropped == [1, 3, 4, 2, 5, 6]
    assert asked == [2, 3, 4, 5, 6, 7]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_time_brings_ephemeral_ones() -> None:
    store, clock = MemoryStore(), Clock()

    class Tick(TrainerCallback):
        def on_step_start(self, batch: Any) -> None:
            clock.now += 10.0

    config = CheckpointerConfig(every=None, every_time=25.0)
    checkpointer = Checkpointer(store, config, now=clock)
    run(9, store, config, tick=Tick(), checkpointer=checkpointer)
    assert store.saves == [(3, False), (6, False), (9, True)]


def test_a_save_in_the_background_is_noticed_at_the_first_boundary_after_its_end() -> None:
    class Slow(MemoryStore):
        def save(self, *args: Any, **settings: Any) -> Any:
            pending = super().save(*args, **settings)
            pending.is_finished = False
            return pending

    store, diary = Slow(), Diary()

    class EndAt(TrainerCallback):
        def on_step_end(self) -> None:
            if self.trainer.step == 4 and store.pending is not None:
                store.pending.is_finished = True

    run(6, store, CheckpointerConfig(every=Duration.steps(2)), diary=diary, end=EndAt())
    told = [entry for entry in diary.hooks if entry.startswith(("end of step", "save"))]
    # 2 ends while 4 runs; 4 is still under way when 6 wants to begin, so it is waited for
    assert told == [
        *("end of step 1", "end of step 2", "end of step 3", "end of step 4", "save 2"),
        *("end of step 5", "end of step 6", "save 4", "save 6"),
    ]


def test_the_last_save_is_measured() -> None:
    store, clock = MemoryStore(), Clock()

    class Costly(MemoryStore):
        def save(self, *args: Any, **settings: Any) -> Any:
            clock.now += 12.0
            return super().save(*args, **settings)

    store = Costly()
    config = CheckpointerConfig(every=Duration.steps(2), is_async=False)
    trainer = run(3, store, config, checkpointer=Checkpointer(store, config, now=clock))
    assert trainer.checkpointer is not None
    assert trainer.checkpointer.save_s == 12.0


def test_what_the_compiler_made_travels_with_checkpoints_of_a_compiled_run(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bytes] = []
    monkeypatch.setattr(checkpointing, "cache_artifacts", lambda: b"kernels")
    monkeypatch.setattr(checkpointing, "load_artifacts", taken.append)
    store, config = MemoryStore(), CheckpointerConfig(every=Duration.steps(2))
    for keeps, steps in ((False, 2), (True, 4), (True, 6), (False, 8)):
        checkpointer = Checkpointer(store, config)
        checkpointer.keeps_compiled = keeps
        run(steps, store, config, checkpointer=checkpointer)
    assert {path: sorted(extra) for path, extra in store.extras.items()} == {
        "memory/step-2": [],
        "memory/step-4": ["compiled.bin"],
        "memory/step-6": ["compiled.bin"],
        "memory/step-8": [],
    }
    assert taken == [b"kernels"]  # the run to step 4 found none at step 2, that to step 8 did not look
