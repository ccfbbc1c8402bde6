"""Construction of a post-training run: model, prepared data, objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from windlass.config.encode import to_data
from windlass.post.control.build import build_rollouts, check_vocabulary
from windlass.post.control.metrics import RolloutMetrics
from windlass.post.control.rollouts import RolloutLoader
from windlass.post.control.scoring import AnswerScorer
from windlass.post.data.batches import RowLoader
from windlass.post.data.chat import ChatEncoder, chat_encoder
from windlass.post.data.config import MixtureConfig
from windlass.post.data.prepared import PreparedColumn, PreparedData, prepare, prepared_root
from windlass.post.evaluation import AnswerEvaluation, EvaluateAnswers, prompts_of
from windlass.post.objectives.batch import Objective, TokenBatch
from windlass.post.objectives.config import SupervisedConfig
from windlass.post.objectives.module import ObjectiveModule
from windlass.post.objectives.policy import DistillationObjective, PolicyObjective
from windlass.post.objectives.preference import PreferenceObjective
from windlass.post.objectives.reward import RewardObjective
from windlass.post.objectives.supervised import SupervisedObjective
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
from windlass.post.reference import reference_column
from windlass.post.rewards.registry import find_verifier
from windlass.train.build import attach_adapter, open_run_store, replicas_of_model, run_callbacks, start_adapter
from windlass.train.checkpoint.protocol import CheckpointStore
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.protocol import CountsPasses, Loader
from windlass.train.hf.companions import Companions, kept_files, tokenizer_companions, with_template
from windlass.train.hf.import_export import companions_for
from windlass.train.hf.sources import adapter_record, kept_folder_of, open_model, tokenizer_config_of
from windlass.train.hf.warm_start import warm_start
from windlass.train.model.adapters import is_of_adapter
from windlass.train.model.config import LoRAConfig, ModelConfig
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
        loader = build_rollouts(own, recipe, module, data, encoder, world)
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
    if trainer.checkpointer is not None:
        trainer.checkpointer.kept = kept_files(_companions(own, recipe, encoder))
    if isinstance(loader, RolloutLoader):
        trainer.add_callback("rollouts", RolloutMetrics(loader))
    if own.evaluate is not None and not own.no_evals:
        trainer.add_callback("evaluate", EvaluateAnswers(_evaluation(own, recipe.model, encoder), own.evaluate))
    return trainer


def _evaluation(own: PostRecipe, model: ModelConfig, encoder: ChatEncoder) -> AnswerEvaluation:
    config = own.evaluate
    assert config is not None
    scoring = own.reward if config.reward is None and isinstance(own, PolicyRecipe) else config.reward
    assert scoring is not None  # `check` refuses a recipe without
    if config.environments is None and isinstance(own, RolloutRecipe):
        deadline = own.rollout.turn_deadline
        config = replace(config, environments=own.rollout.environments, turn_deadline=deadline)
    return AnswerEvaluation(
        config,
        prepare(prompts_of(config, own.data), "prompt", encoder, prepared_root(own.data)),
        model=model,
        encoder=encoder,
        scorer=AnswerScorer.of(scoring, encoder.tokenizer, has_environments=bool(config.environments)),
        seed=own.seed,
    )


def _module(own: PostRecipe, recipe: Recipe, world: World) -> tuple[ObjectiveModule, CheckpointStore | None]:
    """Return the model with the starting weights, its objective and optimizer; and the store of checkpoints."""
    assert isinstance(recipe.model, ModelConfig)
    with torch.device("meta"):
        model = Decoder(recipe.model)
    attach_adapter(model, recipe)
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
    if recipe.adapter is not None:
        start_adapter(module, own, base="")
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
    kept = {
        name: value
        for name, value in weights.items()
        if (is_scored and name.startswith("score.")) or not is_of_adapter(name)
    }
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
    encoder = chat_encoder(
        recipe.data, config, folder=kept_folder_of(start) if start and not recipe.data.tokenizer.path else ""
    )
    check_vocabulary(encoder.tokenizer, vocab_size, config)
    return prepare(recipe.data, recipe.ROWS, encoder, prepared_root(recipe.data)), encoder


def _companions(own: PostRecipe, recipe: Recipe, encoder: ChatEncoder) -> Companions:
    """Return what an export of this run's checkpoints needs beside weights: tokenizer, template, special ids."""
    assert isinstance(recipe.model, ModelConfig)
    wanted, found, tokenizer = own.data.tokenizer, Companions(), encoder.tokenizer
    if isinstance(own.model, StartingModel) and not wanted.path:
        with open_model(own.model.path) as source:
            found = companions_for(source)
        stated = {"bos_token_id": wanted.bos_id, "eos_token_id": wanted.eos_id, "pad_token_id": wanted.pad_id}
        found = replace(found, ids={**found.ids, **{name: each for name, each in stated.items() if each is not None}})
    elif wanted.path == "bytes" or Path(wanted.path).expanduser().exists():
        found = tokenizer_companions(wanted.path, tokenizer.ids, max_length=recipe.model.max_length)
    return with_template(found, encoder.template.text)


def _record(
    resolved: ResolvedRecipe, recipe: Recipe, tokenizer: TokenizerConfig, data: PreparedData
) -> dict[str, object]:
    """Return the record of the recipe, with what was read from files: architecture, tokenizer, data."""
    assert isinstance(recipe.model, ModelConfig)
    return {
        **resolved.record(),
        "model": to_data(recipe.model, keep_defaults=True),
        "tokenizer": to_data(tokenizer, keep_defaults=True),
        **(
            {"adapter": adapter_record(recipe.adapter, resolved.recipe.base_path)}
            if isinstance(recipe.adapter, LoRAConfig)
            else {}
        ),
        "verifiers": _verifiers(resolved.recipe),
        "prepared": {"key": data.key, "statistics": [dict(each) for each in data.statistics]},
    }


def _verifiers(recipe: Recipe) -> dict[str, str]:
    """Return the version of each verifier of training and evaluation, by name."""
    assert isinstance(recipe, PostRecipe)
    rewards = [recipe.reward] if isinstance(recipe, PolicyRecipe) else []
    if recipe.evaluate is not None and recipe.evaluate.reward is not None:
        rewards.append(recipe.evaluate.reward)
    return {
        each.name: find_verifier(each.name, each.settings).version for config in rewards for each in config.verifiers
    }
