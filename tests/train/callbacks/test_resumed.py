"""What trackers and schedules do when training goes on from a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.train.callbacks.conftest import Make
from tests.train.tiny import Diary, MemoryStore, PointLoader
from windlass.core.errors import PreconditionError, SpecError
from windlass.train.callbacks.config import BatchSizeConfig, SequenceLengthConfig
from windlass.train.callbacks.gradients import Gradients
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.callbacks.schedules import BatchSize, SequenceLength
from windlass.train.callbacks.trackers.json_lines import JsonLines, cut_after
from windlass.train.checkpoint.config import CheckpointerConfig
from windlass.train.duration import Duration

EVERY_4 = CheckpointerConfig(every=Duration.steps(4), is_async=False)


class Crash(TrainerCallback):
    """Dies at a step, after its metrics may have been told."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_step_end(self) -> None:
        if self.trainer.step == self.at:
            raise RuntimeError("crash")


def test_json_lines_has_each_step_once_after_a_crash(tmp_path: Path, make: Make, store: MemoryStore) -> None:
    path = tmp_path / "metrics.jsonl"

    def run(crash: Crash | None) -> None:
        callbacks: dict[str, TrainerCallback | None] = {"jsonl": JsonLines(path=str(path)), "crash": crash}
        make(callbacks, steps=10, store=store, checkpoint=EVERY_4, collect_every=1).fit()

    with pytest.raises(RuntimeError):
        run(Crash(7))
    assert len(path.read_text().splitlines()) > 4
    run(None)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["step"] for entry in entries] == list(range(1, 11))


def test_torn_and_foreign_lines_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4')
    cut_after(path, 9)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'
    cut_after(path, 2)
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    cut_after(path, 9)
    assert path.read_text() == '{"step": 1}\n'
    cut_after(tmp_path / "none", 1)
    assert not (tmp_path / "none").exists()


class Growing(PointLoader):
    """A loader whose batch and length can change; one token is one row."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_tokens, self.length = 8, 4
        self.calls: list[tuple[str, int]] = []

    def set_batch(self, tokens: int) -> None:
        if tokens % 8:
            raise SpecError([])
        self.batch_tokens = self.rows = tokens
        self.calls.append(("batch", tokens))

    def set_length(self, length: int) -> None:
        self.length = length
        self.calls.append(("length", length))


def batch_size(scale_lr: bool = False) -> BatchSize:
    at = (Duration.steps(2), Duration.tokens(8 * 2 + 16 * 3))
    return BatchSize(at=at, tokens=(16, 32), scale_lr=scale_lr)


def test_the_batch_grows_at_its_moments_and_the_rate_with_its_root(make: Make) -> None:
    diary = Diary()
    make({"batch": batch_size(scale_lr=True), "diary": diary}, steps=7, loader=Growing()).fit()
    assert [diary.metrics[step]["train/batch_tokens"] for step in range(1, 8)] == [8, 8, 16, 16, 16, 32, 32]
    factor = [diary.metrics[step]["optim/lr"] / diary.metrics[1]["optim/lr"] for step in (2, 3, 7)]
    assert factor == pytest.approx([1.0, 2**0.5, 2.0])


def test_a_resumed_run_has_the_batch_of_its_place(make: Make, store: MemoryStore) -> None:
    whole = Diary()
    make({"batch": batch_size(), "diary": whole}, steps=8, loader=Growing()).fit()
    with pytest.raises(RuntimeError):
        make(
            {"batch": batch_size(), "crash": Crash(6)}, steps=8, loader=Growing(), store=store, checkpoint=EVERY_4
        ).fit()
    rest = Diary()
    make({"batch": batch_size(), "diary": rest}, steps=8, loader=Growing(), store=store, checkpoint=EVERY_4).fit()
    for step in (5, 6, 7, 8):
        assert rest.metrics[step]["train/batch_tokens"] == whole.metrics[step]["train/batch_tokens"]
        assert rest.metrics[step]["train/loss"] == whole.metrics[step]["train/loss"]


def test_rows_get_longer(make: Make) -> None:
    loader = Growing()
    lengths = SequenceLength(at=(Duration.steps(0), Duration.steps(3)), lengths=(1, 2))
    make({"length": lengths}, loader=loader).fit()
    assert loader.calls == [("length", 1), ("length", 2), ("length", 4), ("length", 1), ("length", 2)]


@pytest.mark.parametrize("callback", [batch_size(), SequenceLength(at=(), lengths=())])
def test_a_loader_that_cannot_is_refused_before_the_first_step(make: Make, callback: TrainerCallback) -> None:
    trainer = make({"it": callback})
    with pytest.raises(SpecError, match="the loader PointLoader cannot change"):
        trainer.fit()
    assert trainer.step == 0


def test_a_size_that_the_loader_refuses_is_refused_before_the_first_step(make: Make) -> None:
    trainer = make({"it": BatchSize(at=(Duration.steps(100),), tokens=(12,))}, loader=Growing())
    with pytest.raises(SpecError):
        trainer.fit()
    assert trainer.step == 0


def test_settings_of_schedules() -> None:
    bad: list[Any] = [
        BatchSizeConfig(at=(Duration.steps(1),), tokens=(1, 2)),
        BatchSizeConfig(at=(Duration.steps(2), Duration.steps(2)), tokens=(1, 2)),
        SequenceLengthConfig(at=(Duration.steps(2),), lengths=(0,)),
    ]
    assert [next(iter(config.check()))[:2] for config in bad] == [
        ("at", "1 moment for 2 tokens"),
        ("at.1", "2 steps is not after 2 steps"),
        ("lengths.0", "0 is below 1"),
    ]
    assert not list(BatchSizeConfig(at=(Duration.steps(2), Duration.tokens(1)), tokens=(1, 2)).check())


def test_norms_and_stray_scores(make: Make) -> None:
    diary = Diary()
    gradients = Gradients(every=3, match=("0.*",))
    trainer = make({"gradients": gradients, "diary": diary}, steps=14)
    seen: dict[int, float] = {}

    class Witness(TrainerCallback):
        def on_optim(self) -> None:
            grad = self.trainer.module.model.get_parameter("0.weight").grad
            assert grad is not None
            seen[self.trainer.step + 1] = float(grad.norm())

    trainer.add_callback("witness", Witness())
    trainer.fit()
    assert [step for step, values in diary.metrics.items() if "gradients/0.weight" in values] == [3, 6, 9, 12]
    assert diary.metrics[6]["gradients/0.weight"] == pytest.approx(seen[6])
    assert "weights/0.bias" in diary.metrics[6]
    assert "gradients/3.weight" not in diary.metrics[6]
    assert [step for step, values in diary.metrics.items() if "gradients/loss_stray" in values] == [11, 12, 13, 14]
    past = [diary.metrics[step]["train/loss"] for step in range(1, 11)]
    mean = sum(past) / 10
    spread = (sum((value - mean) ** 2 for value in past) / 9) ** 0.5
    assert diary.metrics[11]["gradients/loss_stray"] == pytest.approx((diary.metrics[11]["train/loss"] - mean) / spread)
    other = Gradients()
    other.load_state_dict(json.loads(json.dumps(gradients.state_dict())))
    assert other.state_dict() == gradients.state_dict()


def test_a_glob_that_watches_nothing_is_refused(make: Make) -> None:
    with pytest.raises(SpecError, match="matches no parameter"):
        make({"gradients": Gradients(match=("nothing.*",))}).fit()


def test_a_file_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    for content in ("my notes\n", '{"loss": 1}\n', "x"):
        (tmp_path / "notes").write_text(content)
        with pytest.raises(PreconditionError, match="is not a metrics file"):
            cut_after(tmp_path / "notes", 0)
        assert (tmp_path / "notes").read_text() == content
    (tmp_path / "notes").write_text('{"st')
    cut_after(tmp_path / "notes", 0)
    assert (tmp_path / "notes").read_text() == ""


def test_a_file_that_cannot_be_written_is_named(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = JsonLines(path=str(tmp_path / "file" / "metrics.jsonl"))
    with pytest.raises(PreconditionError, match=r"cannot write metrics to .*metrics\.jsonl"):
        make({"jsonl": log}, steps=1).fit()
