"""The trainer on one process: hooks, lengths, stops, and exact resumption."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.train.tiny import QUIET, Diary, LatePointLoader, MemoryStore, PointLoader, point_module
from windlass.core.errors import UsageError
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.checkpoint.config import CheckpointerConfig, LoadConfig
from windlass.train.duration import Duration
from windlass.train.errors import CheckpointError, TrainingError
from windlass.train.optim.schedule_config import LinearConfig
from windlass.train.trainer import Trainer


def trainer_of(steps: int = 4, **settings: Any) -> Trainer[Any]:
    settings.setdefault("module", point_module())
    settings.setdefault("loader", PointLoader())
    settings.setdefault("duration", Duration.steps(steps))
    settings["callbacks"] = {**QUIET, **settings.get("callbacks", {})}
    return Trainer(settings.pop("module"), settings.pop("loader"), **settings)


def weights_of(trainer: Trainer[Any]) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.module.model.parameters()]


def are_equal(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self) -> None:
        if self.trainer.step == self.step:
            self.trainer.request_stop()


def test_hooks_come_in_their_order() -> None:
    diary = Diary()
    trainer_of(3, callbacks={"diary": diary}, collect_every=2).fit()
    assert diary.hooks == [
        *("attach", "start", "epoch 0"),
        *("step 1", "optim", "end of step 1", "step 2", "optim", "end of step 2", "metrics 1", "metrics 2"),
        *("step 3", "optim", "end of step 3", "metrics 3", "end"),
    ]


def test_metrics_of_every_step_arrive_whatever_the_interval() -> None:
    often, rarely = Diary(), Diary()
    trainer_of(7, callbacks={"diary": often}, collect_every=1).fit()
    trainer_of(7, callbacks={"diary": rarely}, collect_every=100).fit()
    assert often.metrics == rarely.metrics
    assert set(often.metrics) == set(range(1, 8))
    assert set(often.metrics[1]) == {"train/loss", "optim/grad_norm", "optim/lr"}


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        (Duration.steps(6), 6),
        (Duration.tokens(24), 3),
        (Duration.tokens(25), 4),
        (Duration.epochs(2), 10),
        (Duration.steps(0), 0),
    ],
)
def test_duration_is_kept_in_each_unit(duration: Duration, steps: int) -> None:
    outcome = trainer_of(duration=duration).fit()
    assert (outcome.end, outcome.step, outcome.tokens) == ("finished", steps, steps * 8)


def test_stop_is_an_end_and_leaves_the_schedule_alone() -> None:
    whole, short = Diary(), Diary()
    schedule = LinearConfig()
    trainer_of(10, schedule=schedule, callbacks={"diary": whole}).fit()
    outcome = trainer_of(10, stop=Duration.steps(4), schedule=schedule, callbacks={"diary": short}).fit()
    assert outcome.is_finished
    assert short.metrics == {step: whole.metrics[step] for step in range(1, 5)}
    assert whole.metrics[10]["optim/lr"] == 0.0


def test_a_request_to_stop_is_obeyed_at_the_next_boundary_and_fit_goes_on_exactly() -> None:
    straight = trainer_of(9)
    straight.fit()
    loader = PointLoader()
    trainer = trainer_of(9, loader=loader, callbacks={"stop": StopAt(4)})
    first = trainer.fit()
    assert (first.end, first.step, first.reason) == ("stopped", 4, "requested by a callback")
    assert trainer.fit().is_finished
    assert are_equal(weights_of(trainer), weights_of(straight))
    assert loader.given == [0, 1, 2, 3, 4, 4, 5, 6, 7, 8]  # 4 was fetched, not used, and fetched again


def test_batches_that_are_late_change_nothing() -> None:
    straight, late, diary = trainer_of(4), LatePointLoader(waits=3), Diary()
    straight.fit()
    trainer = trainer_of(4, loader=late, callbacks={"diary": diary})
    assert trainer.fit().is_finished
    assert are_equal(weights_of(trainer), weights_of(straight))
    assert late.waited == 12
    assert set(diary.metrics) == {1, 2, 3, 4}


def test_a_request_to_stop_is_heard_while_a_batch_is_late() -> None:
    class Starved(LatePointLoader):
        """Never has its third batch; asks for a stop after five requests for it."""

        def is_late(self) -> bool:
            if self.next == 2 and self.waited == 5:
                trainer.request_stop()
            return self.next == 2

    loader = Starved(waits=0)
    trainer = trainer_of(4, loader=loader, store=MemoryStore())
    outcome = trainer.fit()
    assert (outcome.end, outcome.step, outcome.checkpoint) == ("stopped", 2, "memory/step-2")
    assert loader.waited == 6


@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_a_new_trainer_goes_on_from_the_checkpoint_bit_by_bit(stop_at: int) -> None:
    straight = trainer_of(7, module=point_module(dropout=0.3))
    straight.fit()
    store = MemoryStore()
    trainer_of(7, module=point_module(dropout=0.3), store=store, callbacks={"stop": StopAt(stop_at)}).fit()
    loader, diary = PointLoader(), Diary()
    torch.manual_seed(99)
    resumed = trainer_of(7, module=point_module(dropout=0.3), loader=loader, store=store, callbacks={"diary": diary})
    outcome = resumed.fit()
    assert diary.hooks[:3] == ["attach", "load", "start"]
    assert (outcome.step, outcome.tokens, outcome.checkpoint) == (7, 56, "memory/step-7")
    assert loader.given[0] == stop_at
    assert are_equal(weights_of(resumed), weights_of(straight))


def test_an_optimiser_starts_from_its_own_state_not_from_nothing() -> None:
    store = MemoryStore()
    trainer_of(3, store=store).fit()
    resumed = trainer_of(3, store=store)
    assert resumed.fit().step == 3
    state = resumed.module.state_dict()["optim"]
    assert {float(value) for name, value in state.items() if name.endswith(".step")} == {3.0}


def test_a_finished_run_does_nothing_more() -> None:
    store = MemoryStore()
    trainer_of(3, store=store).fit()
    before = list(store.saves)
    assert trainer_of(3, store=store).fit().is_finished
    assert store.saves == before


def test_a_longer_duration_goes_on() -> None:
    store = MemoryStore()
    trainer_of(3, store=store).fit()
    assert trainer_of(5, store=store).fit().step == 5


def test_never_loading_begins_anew_and_says_what_stays(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore()
    trainer_of(3, store=store).fit()
    config = CheckpointerConfig(load=LoadConfig(strategy="never"))
    diary = Diary()
    trainer_of(2, store=store, checkpoint=config, callbacks={"diary": diary}).fit()
    assert "load" not in diary.hooks
    assert "the folder contains a run up to step 3" in capsys.readouterr().err


def test_always_loading_needs_something_to_load() -> None:
    config = CheckpointerConfig(load=LoadConfig(strategy="always"))
    with pytest.raises(CheckpointError, match="no checkpoint in memory") as error:
        trainer_of(store=MemoryStore(), checkpoint=config).fit()
    assert error.value.code == "no-checkpoint"


class Poison(TrainerCallback):
    """A loss that is no number from a step on."""

    def on_step_start(self, batch: Any) -> None:
        if self.trainer.step == 2:
            with torch.no_grad():
                next(self.trainer.module.model.parameters()).fill_(float("nan"))


def test_a_loss_that_is_no_number_ends_training_before_a_checkpoint_is_written() -> None:
    store, diary = MemoryStore(), Diary()
    trainer = trainer_of(9, store=store, callbacks={"poison": Poison(), "diary": diary})
    with pytest.raises(TrainingError, match="loss is nan at step 3") as error:
        trainer.fit()
    assert error.value.code == "loss-not-finite"
    assert store.saves == []
    assert diary.hooks[-2:] == ["error TrainingError", "end"]


def test_bad_weights_are_never_saved_even_where_training_goes_on() -> None:
    store = MemoryStore()
    trainer = trainer_of(5, store=store, callbacks={"poison": Poison()}, stop_on_nan=False)
    assert trainer.fit().is_finished
    assert store.saves == []


def test_a_callback_that_fails_at_the_end_does_not_hide_the_error() -> None:
    class Bad(TrainerCallback):
        def on_step_end(self) -> None:
            raise KeyError("first")

        def on_end(self) -> None:
            raise OSError("second")

    with pytest.raises(KeyError, match="first") as error:
        trainer_of(callbacks={"bad": Bad()}).fit()
    assert error.value.__notes__ == ["Bad then failed too: second"]


def test_a_loader_that_ends_ends_training() -> None:
    class Short(PointLoader):
        def __iter__(self) -> Any:
            batches = super().__iter__()
            while self.next < 3:
                yield next(batches)

    outcome = trainer_of(9, loader=Short()).fit()
    assert (outcome.end, outcome.step) == ("finished", 3)


def test_callbacks_run_by_priority_then_name_and_names_are_taken_once() -> None:
    class Early(TrainerCallback):
        priority = 5

    trainer = trainer_of(callbacks={"b": TrainerCallback(), "a": TrainerCallback(), "z": Early()})
    assert list(trainer.callbacks) == ["z", "a", "b"]
    with pytest.raises(UsageError, match="duplicate callback a"):
        trainer.add_callback("a", TrainerCallback())


def test_a_callback_may_add_another_one_while_it_is_attached() -> None:
    diary = Diary()

    class Adding(TrainerCallback):
        def on_attach(self) -> None:
            self.trainer.add_callback("diary", diary)

    trainer_of(1, callbacks={"adding": Adding()}).fit()
    assert diary.hooks[:2] == ["attach", "start"]


def test_a_callback_keeps_its_state_in_checkpoints() -> None:
    class Counting(TrainerCallback):
        count = 0

        def on_step_end(self) -> None:
            self.count += 1

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: Any) -> None:
            self.count = state["count"]

    store = MemoryStore()
    trainer_of(3, store=store, callbacks={"counting": Counting()}).fit()
    resumed = Counting()
    trainer_of(5, store=store, callbacks={"counting": resumed}).fit()
    assert resumed.count == 5


def test_every_run_has_console_speed_and_garbage_unless_left_out() -> None:
    assert {"console", "speed", "garbage"} <= set(
        Trainer(point_module(), PointLoader(), duration=Duration.steps(1)).callbacks
    )
    assert not set(trainer_of().callbacks)
