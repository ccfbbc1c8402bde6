"""A run in epochs: the plan, the progress and the schedule know the step at which it ends."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from tests.train.hf.models import MODELS
from tests.train.hf.test_runs import recipe
from windlass import train
from windlass.train.build import build_trainer
from windlass.train.callbacks.protocol import TrainerCallback
from windlass.train.data.config import SourceConfig, TokenizerConfig
from windlass.train.data.tokenization.ingestion import ingest
from windlass.train.optim.schedule_config import LinearConfig
from windlass.train.parallel.world import World
from windlass.train.plan.machine import MachineSpec
from windlass.train.plan.page import plan_page
from windlass.train.plan.plan import plan_recipe

MODEL = dataclasses.replace(MODELS["llama"], vocab_size=258, num_layers=1)


def epochs_of(folder: Path, number: int, *, lines: int = 8, **changes: object) -> train.Recipe:
    """Rows of 16 bytes, four in a batch; the text ends amid a batch."""
    made = recipe(folder, MODEL, duration=train.Duration.epochs(number), no_checkpoints=True, **changes)
    (folder / "text.txt").write_text("words to learn from\n" * lines)
    return made


class Rates(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_step_end(self) -> None:
        self.seen.append(self.trainer.module.optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(("number", "lines", "steps"), [(2, 8, 5), (3, 8, 8), (4, 2, 2)])
def test_plan_and_progress_say_how_many_steps_will_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int, lines: int, steps: int
) -> None:
    planned = epochs_of(tmp_path, number, lines=lines, stop=train.Duration.steps(100))
    source = SourceConfig(path=(str(tmp_path / "text.txt"),))
    before = plan_recipe(planned, MachineSpec(), apply=False)
    assert not before.length.is_exact
    assert "length        about " in "\n".join(plan_page(before))
    ingest(source, TokenizerConfig(path="bytes"), cache=tmp_path / "cache")
    plan = plan_recipe(planned, MachineSpec(), apply=False)
    assert (plan.length.steps, plan.length.is_exact, plan.length.is_bound) == (steps, True, False)
    assert not any("depends on the data" in warning for warning in plan.warnings)
    made = build_trainer(planned, World(device=torch.device("cpu")))
    assert made.fit().step == steps
    told = capsys.readouterr().err
    assert f"step 0/{steps}  training on" in told
    assert f"step {steps}/{steps}" in told


def test_the_progress_of_a_resumed_run_ends_at_the_same_step(tmp_path: Path) -> None:
    made = build_trainer(epochs_of(tmp_path, 3, stop=train.Duration.steps(3)), World(device=torch.device("cpu")))
    assert made.fit().step == 3
    state = made.state_dict()
    again = build_trainer(epochs_of(tmp_path, 3), World(device=torch.device("cpu")))
    again.load_state_dict(state)
    assert again.step_at(train.Duration.epochs(3)) == 8
    assert again.fit().step == 8


def test_a_schedule_ends_with_the_epochs(tmp_path: Path) -> None:
    """It ended with the whole batches of each epoch, here two of 2.5, and left the rest of the run at its last rate."""
    rates = Rates()
    schedule = LinearConfig(final=0.0)
    made = build_trainer(epochs_of(tmp_path, 4, schedule=schedule), World(device=torch.device("cpu")))
    made.add_callback("rates", rates)
    made.fit()
    steps = len(rates.seen)
    same = build_trainer(
        dataclasses.replace(epochs_of(tmp_path, 4, schedule=schedule), duration=train.Duration.steps(steps)),
        World(device=torch.device("cpu")),
    )
    expected = Rates()
    same.add_callback("rates", expected)
    same.fit()
    assert rates.seen == expected.seen
    assert all(after < before for before, after in zip(rates.seen, rates.seen[1:], strict=False))


def test_a_stop_is_only_a_bound_where_the_data_is_not_here(tmp_path: Path) -> None:
    gone = epochs_of(tmp_path, 2, stop=train.Duration.steps(100))
    (tmp_path / "text.txt").unlink()
    plan = plan_recipe(gone, MachineSpec(), apply=False)
    assert plan.length.is_bound
    assert "length        at most 100 steps" in "\n".join(plan_page(plan))
    assert any("depends on the data" in warning for warning in plan.warnings)
