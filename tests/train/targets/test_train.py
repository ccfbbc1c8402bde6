"""Code of the user's own in every part of a recipe, trained: it works, resumes exactly, and says what is wrong."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from tests.train.targets.own_parts import write_parts
from tests.train.targets.test_resolve import RECIPE
from tests.train.tiny_recipe import tensors_of, write_text
from windlass.core.errors import SpecError, WindlassError
from windlass.testing import run_distributed_test
from windlass.train.build import build_trainer
from windlass.train.parallel.world import World
from windlass.train.plan.machine import MachineSpec
from windlass.train.plan.page import plan_page
from windlass.train.plan.plan import plan_recipe
from windlass.train.resolve import resolve

QUIET = ["callbacks.console.enabled=false", "callbacks.speed.enabled=false", "device=cpu"]
PARTS = {
    "model": [],
    "dataclass": ["model.target=parts.py:NetConfig", "model.args.width=12"],
    "optimiser": ["optim.kind=python", "optim.target=parts.py:Counting", "optim.args.slow=2", "optim.lr=0.01"],
    "torch": ["optim.kind=python", "optim.target=torch.optim:NAdam", "optim.args.betas=[0.8, 0.9]"],
    "schedule": ["schedule={kind: python, target: 'parts.py:saw', args: {period: 3}}"],
    "schedule class": ["schedule={kind: python, target: 'parts.py:Halving', args: {every: 2}}"],
    "source of ids": ["data.sources=[{kind: python, target: 'parts.py:numbers'}]"],
    "source of text": ["data.sources=[{kind: python, target: 'parts.py:words'}, {path: text.txt}]"],
    "loader and module": [
        *("model.target=parts.py:linear", "~model.args", "train_module.target=parts.py:regression"),
        "data={kind: python, target: 'parts.py:Vectors', batch_tokens: 8}",
    ],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a user's file, recipe and text."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    prepare(tmp_path)
    return tmp_path


def prepare(folder: Path) -> None:
    write_parts(folder)
    (folder / "own.yaml").write_text(RECIPE)
    write_text(folder / "text.txt")


def train_to(name: str, steps: int, words: list[str], world: World | None = None) -> str:
    """Train up to a step, in the folder of checkpoints `name`; returns the last checkpoint."""
    cache = [] if any("Vectors" in word for word in words) else ["data.cache=cache"]
    overrides = [*QUIET, *cache, f"checkpoint.folder={name}", f"stop={steps}steps", *words]
    world = world or World(device=torch.device("cpu"))
    return build_trainer(resolve("own.yaml", overrides), world).fit().checkpoint


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("part", PARTS)
def test_a_resumed_run_has_the_bits_of_one_that_was_not(part: str) -> None:
    words = [*PARTS[part], *(["model.args.dropout=0.2"] if part == "model" else [])]
    straight = train_to("straight", 6, words)
    train_to("resumed", 3, words)
    assert tensors_of(Path(train_to("resumed", 6, words))) == tensors_of(Path(straight))


def test_changed_code_is_told_when_a_run_goes_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_to("run", 2, [])
    capsys.readouterr()
    train_to("run", 3, [])
    assert "the code of" not in capsys.readouterr().err
    with open(folder / "parts.py", "a") as file:
        file.write("\n# changed\n")
    train_to("run", 4, [])
    told = "the code of model (parts.py:Net) changed since step-3; training continues with the new code\n"
    assert told in capsys.readouterr().err
    train_to("run", 5, ["optim.kind=adamw", "schedule={kind: python, target: 'parts.py:saw'}"])
    assert "schedule changed from windlass's own in step-4 to parts.py:saw\n" in capsys.readouterr().err


def test_a_changed_source_is_refused_by_checkpoints_of_the_old_one(folder: Path) -> None:
    words = PARTS["source of ids"]
    train_to("run", 2, words)
    code = (folder / "parts.py").read_text()
    (folder / "parts.py").write_text(code.replace("place) % 32", "place) % 31"))
    for name in [name for name in sys.modules if name.startswith("windlass_file_")]:
        del sys.modules[name]
    with pytest.raises(WindlassError) as caught:
        train_to("run", 4, words)
    assert caught.value.code == "tokens-changed"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.target=parts.py:no_module", "~model.args.width"], "model: parts.py:no_module returned a int"),
        (["model.target=parts.py:fails", "~model.args.width"], "failed: ValueError: a width of 3"),
        (["optim.kind=python", "optim.target=parts.py:half"], "omits"),
        (["optim.kind=python", "optim.target=parts.py:InGroups"], "InGroups counts `k` in its groups"),
        (["schedule={kind: python, target: 'parts.py:nothing'}"], "returned 'much' at step 1"),
        (["data.sources=[{kind: python, target: 'parts.py:broken'}]"], "failed: KeyError: 'document'"),
        (["data.sources=[{kind: python, target: 'parts.py:words'}]", "~data.tokenizer"], "no tokenizer is set"),
        (["data={kind: python, target: 'parts.py:linear', batch_tokens: 8}"], "without batches_per_epoch, __iter__"),
        (["train_module.target=parts.py:linear"], "makes a Linear without model, optimizer, weigh"),
        (["train_module.target=parts.py:regression", "loss.z_loss=0.1"], "`loss` is set, but parts.py:regression has"),
        (["loss.kind=chunked"], "returns all logits at once"),
        (["data.mask_documents=true"], "forward of Net has no parameter `documents_BT`"),
        (["parallel.tensor=2"], "parallel.tensor: 2 processes, but parts.py:Net defines no way to split it"),
        (["model.target=parts.py:linear", "~model.args"], "unknown vocabulary size of parts.py:linear"),
    ],
)
def test_what_cannot_be_is_told(words: list[str], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        train_to("run", 2, words)
    assert message in caught.value.message
    assert caught.value.hint


@pytest.mark.usefixtures("folder")
def test_a_plan_counts_a_model_of_the_users_own() -> None:
    recipe = resolve("own.yaml", ["data.sources=[{kind: python, target: 'parts.py:numbers'}]"]).recipe
    plan = plan_recipe(recipe, MachineSpec(world=2))
    assert plan.parameters.total == 260 * 8 + 2 * (8 * 8 + 8) + 8 + 8 * 260 + 260
    assert plan.flops_per_token == 6 * (2 * 8 * 8 + 8 * 260)
    assert plan.applied.facts["parameters_of_process"] == plan.parameters.total
    assert any("memory is without activations" in warning for warning in plan.warnings)
    assert any("parts.py:numbers has not been tokenized yet" in line for line in plan_page(plan))


def on_two(world: World, folder: Path, name: str, data: str, steps: int) -> None:
    os.chdir(folder)
    train_to(name, steps, [f"parallel.data={data}", "data.microbatch_tokens=16"], world)


@pytest.mark.system
@pytest.mark.parametrize("data", ["ddp", "fsdp"])
def test_two_processes_train_what_one_does_and_resume_exactly(folder: Path, data: str) -> None:
    run_distributed_test(on_two, num_processes=2, args=(folder, "straight", data, 6))
    for steps in (3, 6):
        run_distributed_test(on_two, num_processes=2, args=(folder, "resumed", data, steps))
    assert tensors_of(folder / "resumed/step-6") == tensors_of(folder / "straight/step-6")
