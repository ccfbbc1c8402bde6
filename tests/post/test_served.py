"""Runs with servers: answers of `rollout.engine: http`, distillation from a served teacher, evaluation of a server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.post.addition import TINY_MODEL, write_sums
from tests.post.rollout.served import ServedEngine, listening
from windlass.core.errors import SpecError
from windlass.post.control.rollouts import RolloutLoader
from windlass.post.evaluation import evaluate_checkpoint
from windlass.post.objectives.batch import TokenBatch
from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.post.rollout.engine import EngineError
from windlass.post.samples.reader import read_samples
from windlass.train.build import build_trainer
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.protocol import NotReady
from windlass.train.data.tokenizer import load_tokenizer
from windlass.train.hf.sources import load_model
from windlass.train.parallel.world import World
from windlass.train.resolve import ResolvedRecipe, resolve
from windlass.train.trainer import Trainer

pytestmark = pytest.mark.system

COMMON = ("data.template=plain", "schedule.warmup=0steps", "~callbacks")


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models that learned sums, one longer than the other."""
    folder = tmp_path_factory.mktemp("models")
    found = []
    for steps in (10, 20):
        overrides = (
            TINY_MODEL,
            *COMMON,
            "data.batch_rows=10",
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
        found.append(folder / str(steps))
    return found


def trainer_of(resolved: ResolvedRecipe) -> Trainer[TokenBatch]:
    return build_trainer(resolved, World(device=torch.device("cpu")))


def served(stack: ExitStack, model: Path, **options: Any) -> tuple[str, ServedEngine]:
    decoder, tokenizer = load_model(str(model)), load_tokenizer(TokenizerConfig(path="bytes"))
    engine = EmbeddedEngine(
        decoder.config, dict(decoder.named_parameters()), num_slots=8, max_length=40, decode=tokenizer.decode
    )
    server = ServedEngine(engine, tokenizer=tokenizer, **options)
    stack.callback(server.close)
    return stack.enter_context(listening(server.answer)), server


def recipe(kind: str, folder: Path, model: Path, *overrides: str) -> ResolvedRecipe:
    source = folder / "prompts.jsonl"
    rows = [{"prompt": f"{n * 7 % 10}+{n * 3 % 10}=", "answer": str(n % 10)} for n in range(20)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = (
        f"model.from={model}",
        *COMMON,
        f"data.mix.0.source={source}",
        f"data.cache={folder / 'cache'}",
        f"checkpoint.folder={folder / 'run'}",
        "data.batch_rows=4",
        "data.max_length=16",
        "data.microbatch_tokens=1024",
        "rollout.max_new_tokens=4",
        "rollout.num_slots=8",
        "rollout.group_size=4",
        "optim.lr=5e-2",
        *(("reward.verifiers=[length]", "reward.verifiers.0.settings={low: 0, high: 4}") if kind == "grpo" else ()),
    )
    return resolve(kind, (*settings, *overrides))


def http(url: str, folder: Path) -> tuple[str, ...]:
    values = {"url": url, "weights": "reload", "folder": str(folder / "weights"), "dtype": "float32"}
    return ("rollout.engine=http", f"rollout.engine.settings={json.dumps(values)}")


def test_grpo_learns_from_a_server_whose_weights_follow(tmp_path: Path, stack: ExitStack, models: list[Path]) -> None:
    """The server begins with another model's weights; each batch is of the version that learns from it."""
    url, server = served(stack, models[1])
    trainer = trainer_of(recipe("grpo", tmp_path, models[0], *http(url, tmp_path), "duration=3steps"))
    assert trainer.fit().is_finished
    samples = list(read_samples(str(tmp_path / "run")))
    assert len(samples) == 3 * 4 * 4
    assert server.paths.count("/collective_rpc") == 3
    assert not list((tmp_path / "weights").iterdir())


def test_grpo_beside_a_server_in_a_worker(tmp_path: Path, stack: ExitStack, models: list[Path]) -> None:
    url, server = served(stack, models[0])
    overrides = (
        *http(url, tmp_path),
        "duration=3steps",
        "async.bound=1",
        "async.ahead=0",
        "objective.correction={clamp_max: 2}",
    )
    assert trainer_of(recipe("grpo", tmp_path, models[0], *overrides)).fit().is_finished
    assert server.paths.count("/collective_rpc") >= 2


def test_a_server_that_keeps_its_weights_is_found_out(tmp_path: Path, stack: ExitStack, models: list[Path]) -> None:
    url, _ = served(stack, models[1], keeps_weights=True)
    trainer = trainer_of(recipe("grpo", tmp_path, models[0], *http(url, tmp_path), "duration=2steps"))
    with pytest.raises(EngineError, match="are not the learner's"):
        trainer.fit()


def test_frozen_servers_generate_without_learning(tmp_path: Path, stack: ExitStack, models: list[Path]) -> None:
    url, server = served(stack, models[0])
    frozen = ("rollout.engine=http", f"rollout.engine.settings.url={url}", "duration=2steps", "rollout.only=true")
    assert trainer_of(recipe("grpo", tmp_path, models[0], *frozen)).fit().is_finished
    assert len(list(read_samples(str(tmp_path / "run")))) == 2 * 4 * 4
    assert "/collective_rpc" not in server.paths
    with pytest.raises(EngineError, match="are not the learner's"):
        trainer_of(recipe("grpo", tmp_path, models[1], *frozen, f"checkpoint.folder={tmp_path / 'other'}")).fit()


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_served_teacher_scores_as_the_same_model_here(
    tmp_path: Path, stack: ExitStack, models: list[Path], is_shared: bool
) -> None:
    url, _ = served(stack, models[1])
    common = (f"rollout.share_prompts={str(is_shared).lower()}", "no_checkpoints=true", "duration=2steps")
    streams = []
    for teacher in (f"teacher.from={models[1]}", f"teacher={{url: '{url}', num_requests: 4}}"):
        trainer = trainer_of(recipe("distill", tmp_path, models[0], *common, teacher))
        assert isinstance(trainer.loader, RolloutLoader)
        batch = next(batch for batch in trainer.loader if not isinstance(batch, NotReady))
        streams.append([part.streams["teacher"] for part in batch.parts])
        trainer.loader.close()
    for own, theirs in zip(*streams, strict=True):
        assert own.abs().sum() > 0
        torch.testing.assert_close(own, theirs, atol=1e-4, rtol=1e-4)


def test_distillation_from_a_served_teacher(tmp_path: Path, stack: ExitStack, models: list[Path]) -> None:
    url, server = served(stack, models[1])
    resolved = recipe("distill", tmp_path, models[0], f"teacher={{url: '{url}'}}", "duration=3steps")
    assert trainer_of(resolved).fit().is_finished
    assert server.paths.count("/v1/completions") > 3 * 4 * 4


def test_a_server_of_a_checkpoint_is_evaluated(tmp_path: Path, stack: ExitStack, models: list[Path]) -> None:
    rows = write_sums(tmp_path / "held-out.jsonl", 6)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": "1+1=", "answer": "2"}) + "\n" for _ in rows.read_text().splitlines())
    )
    url, _ = served(stack, models[1])
    settings = ["reward.verifiers=[exact]", "max_new_tokens=4"]
    over_http = [*settings, "engine=http", f"engine.settings.url={url}"]
    own = evaluate_checkpoint(str(models[1]), str(prompts), settings, device="cpu")
    assert evaluate_checkpoint(str(models[1]), str(prompts), over_http, device="cpu") == own
    assert evaluate_checkpoint(str(models[1]), str(prompts), [*settings, "engine=transformers"], device="cpu") == own
    with pytest.raises(EngineError, match="are not the learner's"):
        evaluate_checkpoint(str(models[0]), str(prompts), over_http, device="cpu")


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        (("rollout.engine=vlm",), "unknown engine `vlm`"),
        (("rollout.engine=http",), "no address of a server"),
        (("rollout.engine=http", "rollout.engine.settings.url=ftp://x"), "is not the address of a server"),
        (("rollout.engine=http", "rollout.engine.settings.url=http://a:b@x"), "a user, a password"),
        (("rollout.engine=http", "rollout.engine.settings.url=http://x"), "weights are frozen"),
        (
            ("rollout.engine={name: http, settings: {url: 'http://x', weights: reload}}", "rollout.temperature=0.7"),
            "are the model's own",
        ),
        (("rollout.engine=vllm",), "generates in worker processes"),
        (("rollout.engine=transformers", "rollout.replay=elsewhere"), "generates nothing"),
        (("rollout.engine={name: embedded, settings: {slots: 3}}",), "invalid settings of engine `embedded`"),
        (("evaluate={mix: [{source: x}], engine: {name: http, settings: {url: 'http://x'}}}",), "weights of that step"),
        (("evaluate={mix: [{source: x}], engine: vllm}",), "an evaluation has none"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_before_the_run(
    tmp_path: Path, models: list[Path], overrides: tuple[str, ...], why: str
) -> None:
    with pytest.raises(Exception, match=why) as caught:
        trainer_of(recipe("grpo", tmp_path, models[0], *overrides))
    assert caught.type.__module__ == "windlass.core.errors"


def test_a_served_teacher_scores_at_temperature_one(tmp_path: Path, models: list[Path]) -> None:
    for teacher, why in (("{url: 'http://x'}", "temperature 1"), ("{url: nowhere}", "not the address of a server")):
        with pytest.raises(SpecError, match=why):
            recipe("distill", tmp_path, models[0], f"teacher={teacher}", "rollout.temperature=0.7")
