"""On-policy distillation from a recipe: the student approaches its teacher, by the gradient of the reverse KL."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
import torch

from tests.post.addition import TINY_MODEL, write_sums
from windlass.core.errors import SpecError
from windlass.post.control.rollouts import RolloutLoader
from windlass.post.objectives.batch import TokenBatch
from windlass.post.objectives.module import ObjectiveModule
from windlass.post.samples.reader import read_samples
from windlass.post.samples.records import oldest_version
from windlass.train.build import build_trainer
from windlass.train.data.protocol import NotReady
from windlass.train.hf.sources import load_model
from windlass.train.modules.protocol import StepFacts
from windlass.train.parallel.world import World
from windlass.train.resolve import ResolvedRecipe, resolve
from windlass.train.trainer import Trainer

COMMON = ("data.template=plain", "schedule.warmup=0steps", "~callbacks", "data.batch_rows=10")


def taught(folder: Path, steps: int) -> Path:
    """A model that learned sums for some steps."""
    overrides = (
        TINY_MODEL,
        *COMMON,
        "data.max_length=32",
        "data.microbatch_tokens=256",
        f"data.mix.0.source={write_sums(folder / 'sums.jsonl', 20)}",
        f"data.cache={folder / 'cache'}",
        f"checkpoint.folder={folder / str(steps)}",
        "data.tokenizer.path=bytes",
        "optim.lr=1e-2",
        f"duration={steps}steps",
    )
    trainer_of(resolve("sft", overrides)).fit()
    return folder / str(steps)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A student that knows the form of an answer, and a teacher that knows the sums."""
    folder = tmp_path_factory.mktemp("models")
    return taught(folder, 20), taught(folder, 40)


def distill(folder: Path, student: Path, *overrides: str) -> ResolvedRecipe:
    source = folder / "prompts.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"{n * 7 % 10}+{n * 3 % 10}="}) + "\n" for n in range(20)))
    settings = (
        f"model.from={student}",
        *COMMON,
        f"data.mix.0.source={source}",
        f"data.cache={folder / 'cache'}",
        f"checkpoint.folder={folder / 'run'}",
        "data.max_length=16",
        "data.microbatch_tokens=1024",
        "rollout.max_new_tokens=4",
        "rollout.num_slots=16",
        "rollout.group_size=4",
        "rollout.share_prompts=false",  # a row is an answer
        "optim.lr=5e-3",
    )
    return resolve("distill", (*settings, *overrides))


def trainer_of(resolved: ResolvedRecipe) -> Trainer[TokenBatch]:
    return build_trainer(resolved, World(device=torch.device("cpu")))


def first_batch(trainer: Trainer[TokenBatch]) -> TokenBatch:
    assert isinstance(trainer.loader, RolloutLoader)
    batch = next(batch for batch in trainer.loader if not isinstance(batch, NotReady))
    trainer.loader.close()  # it locks the log of samples
    return batch


def reverse_kl(trainer: Trainer[TokenBatch]) -> float:
    """Its mean over the tokens of a batch, without training on it."""
    module, batch = trainer.module, first_batch(trainer)
    assert isinstance(module, ObjectiveModule)
    with torch.no_grad():
        found = [module._sums(part).metrics["reverse_kl"] for part in batch.parts]
    return float(sum(found)) / module.weigh(batch)[0]


def test_the_student_approaches_its_teacher(tmp_path: Path, models: tuple[Path, Path]) -> None:
    student, teacher = models
    settings = (f"teacher.from={teacher}", "duration=40steps", "optim.lr=1e-2")
    before = reverse_kl(trainer_of(distill(tmp_path, student, *settings)))
    trainer = trainer_of(distill(tmp_path, student, *settings))
    assert trainer.fit().is_finished
    assert reverse_kl(trainer) < 0.4 * before


def test_the_gradient_is_that_of_the_reverse_kl_on_the_answers(tmp_path: Path, models: tuple[Path, Path]) -> None:
    student, teacher = models
    trainer = trainer_of(distill(tmp_path, student, f"teacher.from={teacher}", "rollout.temperature=0.8"))
    module, batch = trainer.module, first_batch(trainer)
    assert isinstance(module, ObjectiveModule)
    other, loss = load_model(str(teacher)), torch.zeros(())
    for part in batch.parts:
        picked = part.labels_BT.clamp(min=0)[..., None]
        own_BT, other_BT = (
            (model(part.tokens_BT) / 0.8).log_softmax(-1).gather(2, picked)[..., 0] for model in (module.model, other)
        )
        log_ratio_BT = (own_BT - other_BT).detach()
        loss = loss + (log_ratio_BT * own_BT * part.weights["distillation"]).sum()
    total = module.weigh(batch)[0]
    (loss / total).backward()
    wanted = {name: parameter.grad for name, parameter in module.model.named_parameters()}
    module.optimizer.zero_grad(set_to_none=True)
    module.train_batch(batch, StepFacts(step=1, tokens=0, total_weight=total, total_weights=(total,), lr_factor=1.0))
    for name, parameter in module.model.named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-3, atol=1e-5)


def test_a_model_is_its_own_teacher_with_another_prompt(tmp_path: Path, models: tuple[Path, Path]) -> None:
    student, _ = models
    prefix = "1+1=2\n"
    trainer = trainer_of(distill(tmp_path, student, "teacher=null", f"teacher_prefix={json.dumps(prefix)}"))
    model = load_model(str(student))
    ids = torch.tensor(list(prefix.encode()))  # the tokenizer's ids are bytes
    for part in first_batch(trainer).parts:
        for row in range(part.num_sequences):
            counts_T = part.weights["distillation"][row] > 0
            end = int(counts_T.nonzero().max()) + 2
            tokens = torch.cat([ids, part.tokens_BT[row, :end]])
            with torch.no_grad():
                logs_TV = model(tokens[None])[0].log_softmax(-1)
            wanted = logs_TV[:-1].gather(1, tokens[1:, None])[-int(counts_T.sum()) :, 0]
            torch.testing.assert_close(part.streams["teacher"][row][counts_T], wanted, rtol=1e-4, atol=1e-4)


def test_a_stopped_run_resumes_bit_for_bit(tmp_path: Path, models: tuple[Path, Path]) -> None:
    student, teacher = models
    settings = (f"teacher.from={teacher}", "duration=4steps")
    whole = trainer_of(distill(tmp_path, student, *settings, f"checkpoint.folder={tmp_path / 'whole'}"))
    whole.fit()
    trainer_of(distill(tmp_path, student, *settings, "stop=2steps")).fit()
    second = trainer_of(distill(tmp_path, student, *settings))
    second.fit()
    pairs = zip(whole.module.model.parameters(), second.module.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in islice(pairs, None))


def test_answers_of_older_students_are_corrected_for(tmp_path: Path, models: tuple[Path, Path]) -> None:
    student, teacher = models
    settings = ("async.bound=2", "objective.correction={clamp_max: 2}", "duration=6steps", "optim.lr=2e-2")
    trainer = trainer_of(distill(tmp_path, student, f"teacher.from={teacher}", *settings))
    assert trainer.fit().is_finished
    samples = [(each.step, each.scored.sample.spans) for each in read_samples(tmp_path / "run")]
    # of all steps: a worker that the machine does not let run reads the next weights before it begins what waits for it
    assert 1 <= max(step - oldest_version(spans) for step, spans in samples if step is not None) <= 2


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("teacher=null",), "there is nothing to learn"),
        (("teacher.from=nowhere",), "no model at nowhere"),
        (("async.bound=1",), "answers are of older weights, and nothing corrects that"),
        (("rollout.replay=x",), "answers are of another policy, and nothing corrects that"),
        (("rollout.epochs=2",), "`rollout.epochs` is not supported in distillation"),
        (("rollout.drop_constant_groups=false",), "not supported in distillation"),
        (
            ("data.max_length=61", f"teacher_prefix={'x' * 9}", "teacher=null", "rollout.max_new_tokens=2"),
            "may have 72",
        ),
    ],
)
def test_mistakes_are_named(tmp_path: Path, models: tuple[Path, Path], overrides: tuple[str, ...], why: str) -> None:
    with pytest.raises(SpecError, match=why):
        trainer_of(distill(tmp_path, models[0], *overrides))
