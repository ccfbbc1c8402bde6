"""Construction of a post-training run: model, prepared data, objective."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from windlass.config.encode import to_data
from windlass.core.errors import Problem, SpecError, WindlassError
from windlass.post.control.assembly import BatchAssembly, StreamScorer
from windlass.post.control.config import RewardsConfig
from windlass.post.control.metrics import RolloutMetrics
from windlass.post.control.rollouts import RolloutLoader
from windlass.post.control.sample_log import SampleLog
from windlass.post.control.sample_reader import FOLDER, SampleReplay
from windlass.post.control.scoring import AnswerScorer
from windlass.post.data.batches import RowLoader
from windlass.post.data.chat import ChatEncoder, special_tokens
from windlass.post.data.config import MixtureConfig
from windlass.post.data.prepared import PreparedColumn, PreparedData, prepare
from windlass.post.data.templates import find_template
from windlass.post.objectives.batch import Objective, TokenBatch
from windlass.post.objectives.config import AdvantageConfig, SupervisedConfig
from windlass.post.objectives.module import ObjectiveModule
from windlass.post.objectives.policy import PolicyObjective
from windlass.post.objectives.preference import PreferenceObjective
from windlass.post.objectives.reward import RewardObjective
from windlass.post.objectives.supervised import DistillationObjective, SupervisedObjective
from windlass.post.recipe import (
    DistillationRecipe,
    PolicyRecipe,
    PostRecipe,
    PreferenceRecipe,
    RewardRecipe,
    RolloutRecipe,
    SftRecipe,
    StartingModel,
)
from windlass.post.reference import RowScorer, reference_column
from windlass.post.rewards.pool import PoolConfig, RewardPool
from windlass.post.rewards.registry import find_verifier
from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.train.build import checkpoint_folder, open_run_store, replicas_of_model, run_callbacks
from windlass.train.checkpoint.protocol import CheckpointStore
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.protocol import CountsPasses, Loader
from windlass.train.data.tokenization.units import cache_folder
from windlass.train.data.tokenizer import Tokenizer, load_tokenizer
from windlass.train.hf.sources import load_model, open_model, tokenizer_config_of
from windlass.train.hf.warm_start import warm_start
from windlass.train.model.config import ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.model.init import init_weights
from windlass.train.optim.build import build_optimizer
from windlass.train.optim.groups import freeze, plain_parameters
from windlass.train.optim.schedule_config import ScheduleConfig, ScheduleTarget
from windlass.train.optim.schedules import Rates
from windlass.train.parallel.apply import parallelize
from windlass.train.parallel.world import World
from windlass.train.recipe import Recipe
from windlass.train.resolve import ResolvedRecipe
from windlass.train.targets.schedule import own_schedule
from windlass.train.trainer import Trainer

__all__ = ["build_post_trainer", "prepared_data"]


def build_post_trainer(resolved: ResolvedRecipe, world: World) -> Trainer[Any]:
    """Build the trainer of a post-training recipe. Collective.

    Raises:
        SpecError: the model, a source or the template is wrong; the tokenizer does not fit the model.
    """
    own = resolved.recipe
    assert isinstance(own, PostRecipe)
    recipe = own.settled()
    assert isinstance(recipe.model, ModelConfig)
    assert isinstance(recipe.data, MixtureConfig)
    data, encoder = prepared_data(own, recipe.model.vocab_size)
    module, store = _module(own, recipe, world)
    loader: Loader[TokenBatch]
    if isinstance(own, RolloutRecipe):
        loader = _rollouts(own, recipe, module, data, encoder, world)
    else:
        loader = RowLoader(
            data,
            recipe.data,
            weights=sorted(module.objective.weights),
            are_pairs=own.ROWS == "pair",
            at=own.pooling if isinstance(own, RewardRecipe) else "labels",
            reference=_reference(module, recipe, data, encoder, world),
            pad_id=encoder.tokenizer.ids.pad_id,
            seed=recipe.seed,
            share=world.share,
            is_pinned=world.device.type == "cuda",
        )
    trainer = Trainer(
        module,
        loader,
        duration=recipe.duration,
        stop=recipe.stop,
        schedule=_schedule(own, recipe, loader),
        callbacks=run_callbacks(recipe, recipe.model.vocab_size),
        store=store,
        checkpoint=recipe.checkpoint,
        world=world,
        collect_every=recipe.collect_every,
        seed=recipe.seed,
        config=_record(resolved, recipe, encoder.tokenizer_config, data),
        stop_on_nan=recipe.stop_on_nan,
    )
    if isinstance(loader, RolloutLoader):
        trainer.add_callback("rollouts", RolloutMetrics(loader))
    return trainer


def _module(own: PostRecipe, recipe: Recipe, world: World) -> tuple[ObjectiveModule, CheckpointStore | None]:
    """Return the model with the starting weights, its objective and optimizer; and the store of checkpoints."""
    assert isinstance(recipe.model, ModelConfig)
    with torch.device("meta"):
        model = Decoder(recipe.model)
    freeze(model, recipe.optim.groups)
    names = [name for name, _ in plain_parameters(model)]
    store = open_run_store(recipe, model, world)
    parallelize(model, recipe.parallel, world)
    init_weights(model, recipe.seed, device=world.device)
    module = ObjectiveModule(
        model,
        build_optimizer(model, recipe.optim, replicas=replicas_of_model(model, world), names=names),
        _objective(own),
        language_loss=recipe.loss if _is_plain(own) else None,
        max_grad_norm=recipe.optim.max_grad_norm,
        skip=recipe.optim.skip,
        temperature=own.rollout.temperature if isinstance(own, RolloutRecipe) else 1.0,
        world=world,
        seed=recipe.seed,
    )
    if isinstance(own.model, StartingModel):
        _start(module, own.model.path)
    return module, store


def _reference(
    module: ObjectiveModule, recipe: Recipe, data: PreparedData, encoder: ChatEncoder, world: World
) -> PreparedColumn | None:
    if "reference" not in module.objective.needs:
        return None
    assert isinstance(recipe.model, ModelConfig)
    assert isinstance(recipe.data, MixtureConfig)
    return reference_column(
        data,
        module.model,
        recipe.model,
        world,
        precision=recipe.parallel.precision,
        budget=recipe.data.microbatch_tokens,
        pad_id=encoder.tokenizer.ids.pad_id,
    )


def _reward_pool(config: RewardsConfig) -> RewardPool:
    verifiers = [find_verifier(each.name, each.settings) for each in config.verifiers]
    settings = PoolConfig(num_workers=config.num_workers, deadline_s=config.deadline, on_error=config.on_error)
    return RewardPool(verifiers, settings)


def _rollouts(
    own: RolloutRecipe, recipe: Recipe, module: ObjectiveModule, data: PreparedData, encoder: ChatEncoder, world: World
) -> RolloutLoader:
    assert isinstance(recipe.model, ModelConfig)
    if world.size > 1:
        message = f"a run that generates answers has one process; this job has {world.size}"
        raise SpecError([Problem(message, "unsupported-setting", hint="start it without torchrun")])
    longest = own.data.max_length + own.rollout.max_new_tokens
    if longest > recipe.model.max_length:
        message = f"a prompt and its answer may have {longest} tokens; the model's maximum is {recipe.model.max_length}"
        hint = "lower `data.max_length` or `rollout.max_new_tokens`"
        raise SpecError([Problem(message, "shape-conflict", hint=hint)])
    tokenizer, rollout = encoder.tokenizer, own.rollout
    rewards = own.reward if isinstance(own, PolicyRecipe) else None
    factors = {each.name: each.weight for each in rewards.verifiers} if rewards is not None else {}
    weights = module.state_dict()["model"]
    engine = replay = None
    if rollout.replay:
        replay = SampleReplay(rollout.replay, facts=_facts_of_samples(own, encoder), factors=factors)
    else:
        engine = EmbeddedEngine(
            recipe.model,
            weights,
            num_slots=rollout.num_slots,
            max_length=longest,
            decode=tokenizer.decode,
            device=world.device,
        )
    return RolloutLoader(
        data,
        own.data,
        rollout,
        engine=engine,
        weights=lambda: module.state_dict()["model"],
        scorer=AnswerScorer(
            _reward_pool(rewards) if rewards is not None else RewardPool([]), factors, tokenizer.decode
        ),
        assembly=BatchAssembly(
            rollout,
            rewards,
            own.advantage if isinstance(own, PolicyRecipe) else AdvantageConfig(),
            weight=module.objective.components[0],
            microbatch_tokens=own.data.microbatch_tokens,
            pad_id=tokenizer.ids.pad_id,
            streams=_streams(own, recipe, module, encoder, longest, world),
        ),
        stop_ids=() if tokenizer.ids.eos_id is None else (tokenizer.ids.eos_id,),
        seed=recipe.seed,
        open_log=None if replay else _log_of(own, recipe, data, encoder, weights, tuple(factors)),
        replay=replay,
    )


def _log_of(
    own: RolloutRecipe,
    recipe: Recipe,
    data: PreparedData,
    encoder: ChatEncoder,
    weights: Mapping[str, torch.Tensor],
    verifiers: tuple[str, ...],
) -> Callable[[int], SampleLog] | None:
    """Return what opens the log of samples at a step; None if the run has no local folder of checkpoints."""
    folder = checkpoint_folder(recipe.checkpoint.folder, recipe.name)
    if recipe.no_checkpoints or "://" in folder:
        return None
    settings: dict[str, Any] = dict(to_data(own, keep_defaults=True))
    rollout = {name: value for name, value in settings["rollout"].items() if name != "keep_samples"}
    rows = {name: settings["data"][name] for name in ("batch_rows", "is_shuffled", "seed", "microbatch_tokens")}
    settings = {name: value for name, value in settings.items() if name not in _NOT_IN_SAMPLES}
    parts = [settings, rollout, rows, data.key, to_data(recipe.model, keep_defaults=True)]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode())
    for name, weight in sorted(weights.items()):
        digest.update(name.encode() + weight.detach().flatten()[:_WEIGHTS_OF_DIGEST].double().cpu().numpy().tobytes())
    facts = {**_facts_of_samples(own, encoder), "verifiers": verifiers, "run": digest.hexdigest()[:32]}
    is_fresh = own.checkpoint.load.strategy == "never"
    return lambda step: SampleLog(Path(folder) / FOLDER, step=step, facts=facts, is_fresh=is_fresh and step == 0)


_NOT_IN_SAMPLES = (
    *("name", "model", "data", "rollout", "stop", "checkpoint", "callbacks", "collect_every"),
    *("no_evals", "no_checkpoints", "stop_on_nan"),
)
"""Parts of a recipe that do not determine samples, or that are in the log's facts in another form."""

_WEIGHTS_OF_DIGEST = 256
"""Numbers of each starting weight that tell starting models apart."""


def _facts_of_samples(own: RolloutRecipe, encoder: ChatEncoder) -> dict[str, object]:
    """Return what runs must have in common to learn from each other's samples."""
    ids = encoder.tokenizer.ids
    tokens = [encoder.tokenizer.identity, ids.eos_id, ids.bos_id, encoder.template.digest]
    return {
        "tokenizer and template": hashlib.sha256(json.dumps(tokens).encode()).hexdigest()[:16],
        "temperature": own.rollout.temperature,
    }


def _streams(
    own: RolloutRecipe, recipe: Recipe, module: ObjectiveModule, encoder: ChatEncoder, max_length: int, world: World
) -> dict[str, StreamScorer]:
    """Return what scores the answers of a batch besides the engine, each at the temperature of sampling."""
    found: dict[str, StreamScorer] = {}

    def scorer(model: nn.Module) -> RowScorer:
        return RowScorer(model, world.device, temperature=own.rollout.temperature)

    if isinstance(own, PolicyRecipe) and "reference" in module.objective.needs:
        start = own.reference or own.model
        assert isinstance(start, StartingModel)
        found["reference"] = StreamScorer(score=scorer(_frozen(start.path, recipe, encoder, max_length, world)))
    if own.rollout.steps_per_batch > 1:
        found["proximal"] = StreamScorer(score=scorer(module.model))
    if isinstance(own, DistillationRecipe):
        start = own.teacher or own.model
        assert isinstance(start, StartingModel)
        prefix, begin = tuple(encoder.tokenizer.encode(own.teacher_prefix)), encoder.tokenizer.ids.bos_id

        def prompt(ids: tuple[int, ...]) -> tuple[int, ...]:
            return (ids[0], *prefix, *ids[1:]) if ids[0] == begin else (*prefix, *ids)

        model = _frozen(start.path, recipe, encoder, max_length + len(prefix), world)
        found["teacher"] = StreamScorer(score=scorer(model), prompt=prompt if prefix else None)
    return found


def _frozen(path: str, recipe: Recipe, encoder: ChatEncoder, max_length: int, world: World) -> nn.Module:
    """Return a model that only scores answers, kept in float32 beside the one that learns.

    Raises:
        SpecError: it cannot be read, or its vocabulary or maximum length is too small.
    """
    try:
        model = load_model(path, device=world.device).requires_grad_(requires_grad=False)
    except WindlassError as error:
        raise SpecError([Problem(error.message, error.code, hint=error.hint)]) from error
    _check_vocabulary(encoder.tokenizer, model.config.vocab_size, encoder.tokenizer_config)
    if max_length > model.config.max_length:
        longest = model.config.max_length
        message = f"a prompt and its answer may have {max_length} tokens; the maximum of {path} is {longest}"
        hint = "lower `data.max_length` or `rollout.max_new_tokens`"
        raise SpecError([Problem(message, "shape-conflict", hint=hint)])
    return parallelize(model, recipe.parallel, world, for_training=False)


def _schedule(
    own: PostRecipe, recipe: Recipe, loader: Loader[TokenBatch]
) -> ScheduleConfig | Callable[[int, int], float]:
    if isinstance(own, RolloutRecipe) and own.rollout.only:
        return lambda step, tokens: 0.0
    if isinstance(recipe.schedule, ScheduleTarget):
        batches = loader.batches_per_pass if isinstance(loader, CountsPasses) else loader.batches_per_epoch
        rates = Rates(batch_tokens=None, batches_per_epoch=batches)
        return own_schedule(recipe, recipe.schedule, rates)
    return recipe.schedule


def _objective(recipe: PostRecipe) -> Objective:
    if isinstance(recipe, SftRecipe):
        return SupervisedObjective(config=recipe.objective)
    if isinstance(recipe, RewardRecipe):
        return RewardObjective(config=recipe.objective)
    if isinstance(recipe, PolicyRecipe):
        return PolicyObjective(config=recipe.objective)
    if isinstance(recipe, DistillationRecipe):
        return DistillationObjective(config=recipe.objective)
    assert isinstance(recipe, PreferenceRecipe)
    return PreferenceObjective(config=recipe.objective)


def _is_plain(recipe: PostRecipe) -> bool:
    """Return whether the objective is the cross-entropy of labels with weight 1."""
    return isinstance(recipe, SftRecipe) and recipe.objective == SupervisedConfig()


def _start(module: ObjectiveModule, path: str) -> None:
    """Load the starting model's weights; a new scalar head keeps its initial ones. Collective."""
    weights = module.state_dict()["model"]
    with open_model(path) as source:
        is_scored = source.config.head == "scalar"
    kept = {name: value for name, value in weights.items() if is_scored or not name.startswith("score.")}
    is_strict = not any(name.startswith("score.") for name in weights) or is_scored
    warm_start({"model": kept}, path, optim=False, is_strict=is_strict)
    module.load_state_dict({"model": kept})


def prepared_data(recipe: PostRecipe, vocab_size: int) -> tuple[PreparedData, ChatEncoder]:
    """Return the recipe's rows, prepared unless stored, and what encodes more of them.

    Raises:
        SpecError: no tokenizer, a broken template or source, or ids outside the model's vocabulary.
    """
    start = recipe.model.path if isinstance(recipe.model, StartingModel) else ""
    config = recipe.data.tokenizer
    if not config.path and start:
        config = tokenizer_config_of(start, config)
    tokenizer = load_tokenizer(config)
    _check_vocabulary(tokenizer, vocab_size, config)
    folder = config.path if Path(config.path).is_dir() else str(Path(config.path).parent)
    template = find_template(recipe.data.template, folder=folder, tokens=special_tokens(tokenizer))
    encoder = ChatEncoder(template, tokenizer, config)
    root = cache_folder(None).with_name("prepared") if recipe.data.cache is None else recipe.data.cache.expanduser()
    return prepare(recipe.data, recipe.ROWS, encoder, root.absolute()), encoder


def _check_vocabulary(tokenizer: Tokenizer, vocab_size: int, config: TokenizerConfig) -> None:
    if tokenizer.vocab_size > vocab_size:
        message = f"the tokenizer {config.path} has {tokenizer.vocab_size} ids; the model's vocabulary has {vocab_size}"
        hint = "use the model's own tokenizer, or a model with `model.vocab_size` of at least that"
        raise SpecError([Problem(message, "tokenizer-mismatch", hint=hint)])


def _record(
    resolved: ResolvedRecipe, recipe: Recipe, tokenizer: TokenizerConfig, data: PreparedData
) -> dict[str, object]:
    """Return the record of the recipe, with what was read from files: architecture, tokenizer, data."""
    assert isinstance(recipe.model, ModelConfig)
    return {
        **resolved.record(),
        "model": to_data(recipe.model, keep_defaults=True),
        "tokenizer": to_data(tokenizer, keep_defaults=True),
        "prepared": {"key": data.key, "statistics": [dict(each) for each in data.statistics]},
    }
