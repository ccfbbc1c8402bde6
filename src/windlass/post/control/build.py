"""Construction of rollouts: what samples are generated with, scored with, stored in and learned as."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from windlass.config.encode import to_data
from windlass.core.errors import Problem, SpecError, WindlassError
from windlass.post.control.assembly import BatchAssembly, StreamScorer
from windlass.post.control.asynchronous import AsyncRollouts, SharedRollouts
from windlass.post.control.controller import ControllerConfig, RolloutController
from windlass.post.control.rollouts import RolloutLoader
from windlass.post.control.sample_log import SampleLog
from windlass.post.control.sample_reader import FOLDER, SampleReplay
from windlass.post.control.scoring import AnswerScorer, ScoredSample
from windlass.post.control.source import GroupPrompts, SampleSource
from windlass.post.control.synchronous import SyncRollouts
from windlass.post.data.chat import ChatEncoder
from windlass.post.data.prepared import PreparedData
from windlass.post.objectives.config import AdvantageConfig
from windlass.post.objectives.module import ObjectiveModule
from windlass.post.recipe import DistillationRecipe, PolicyRecipe, RolloutRecipe, StartingModel
from windlass.post.reference import RowScorer
from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.post.rollout.ray import RayProcess
from windlass.post.rollout.remote import MAX_FRAME_BYTES, EngineSpec, RemoteEngine
from windlass.post.weights.files import FileWeightStore
from windlass.post.weights.folder import WeightsFolder
from windlass.post.weights.probe import FLOOR, make_probe
from windlass.post.weights.store import Probe, WeightRef
from windlass.train.build import checkpoint_folder
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenizer import Tokenizer
from windlass.train.hf.sources import load_model
from windlass.train.model.adapters import merged_weights
from windlass.train.model.config import ModelConfig
from windlass.train.parallel.apply import parallelize
from windlass.train.parallel.world import World
from windlass.train.recipe import Recipe

__all__ = ["build_rollouts", "check_vocabulary"]

_PROBES, _PROBE_TOKENS = 4, 64
"""Prompts of a probe, and tokens of each."""

_FLOOR_HALF = 0.3
"""Difference that is tolerated of a policy in half precision, whose engine has float32."""


def build_rollouts(
    own: RolloutRecipe, recipe: Recipe, module: ObjectiveModule, data: PreparedData, encoder: ChatEncoder, world: World
) -> RolloutLoader:
    """Return the loader of a run that learns from its own answers. Collective.

    Raises:
        SpecError: prompts and answers are longer than the model's maximum, or stored samples do not fit.
    """
    assert isinstance(recipe.model, ModelConfig)
    rollout = own.rollout
    if world.size > 1 and rollout.steps_per_batch > 1:
        message = f"`rollout.minibatches` and `rollout.epochs` need a single process; this job has {world.size}"
        raise SpecError([Problem(message, "unsupported-setting", hint="write 1, or start it without torchrun")])
    longest = own.data.max_length + rollout.max_new_tokens
    if longest > recipe.model.max_length:
        message = f"a prompt and its answer may have {longest} tokens; the model's maximum is {recipe.model.max_length}"
        hint = "lower `data.max_length` or `rollout.max_new_tokens`"
        raise SpecError([Problem(message, "shape-conflict", hint=hint)])
    rewards = own.reward if isinstance(own, PolicyRecipe) else None
    ids = encoder.tokenizer.ids
    assembly = BatchAssembly(
        rollout,
        rewards,
        own.advantage if isinstance(own, PolicyRecipe) else AdvantageConfig(),
        weight=module.objective.components[0],
        microbatch_tokens=own.data.microbatch_tokens,
        pad_id=ids.pad_id,
        # a row divided over processes has one sequence
        width=recipe.model.d_model if recipe.parallel.context == 1 else 0,
        streams=_streams(own, recipe, module, encoder, longest, world),
        share=world.share,
    )
    sources = _Sources(
        own=own,
        recipe=recipe,
        module=module,
        data=data,
        encoder=encoder,
        world=world,
        scorer=AnswerScorer.of(rewards, encoder.tokenizer.decode),
        num_used=assembly.num_used_groups,
    )
    return RolloutLoader(
        data,
        own.data,
        rollout,
        assembly=assembly,
        open_source=sources.open,
        stop_ids=() if ids.eos_id is None else (ids.eos_id,),
        seed=recipe.seed,
        is_in_order=not own.asynchronous.bound and not rollout.replay,
    )


class _Sources:
    """Opens the source of samples that a recipe asks for."""

    def __init__(
        self,
        *,
        own: RolloutRecipe,
        recipe: Recipe,
        module: ObjectiveModule,
        data: PreparedData,
        encoder: ChatEncoder,
        world: World,
        scorer: AnswerScorer,
        num_used: Callable[[Sequence[ScoredSample]], int],
    ) -> None:
        self._num_used = num_used
        self._own, self._recipe, self._module, self._data = own, recipe, module, data
        self._encoder, self._world, self._scorer = encoder, world, scorer
        self._replay, self._engine = None, None
        factors = scorer.factors
        if own.rollout.replay:
            facts, steps = _facts_of_samples(own, encoder), own.rollout.steps_per_batch
            self._replay = SampleReplay(own.rollout.replay, facts=facts, factors=factors, steps_per_batch=steps)
            return
        self._open_log = _log_of(own, recipe, data, encoder, self._weights(), tuple(factors))
        if not own.asynchronous.bound:
            self._engine = self._embedded()

    def open(self, prompts: GroupPrompts, step: int) -> SampleSource:
        """Open the source at a step."""
        if self._replay is not None:
            return self._replay
        log = self._open_log(step) if self._open_log is not None and self._world.is_main else None
        own = self._own
        if self._engine is None:
            rollouts = self._async(prompts, step, log) if self._world.is_main else None
            return SharedRollouts(rollouts, self._weights, self._probe, self._world)
        return SyncRollouts(
            prompts,
            groups_per_batch=own.data.batch_rows,
            group_size=own.rollout.group_size,
            num_used=self._num_used,
            refills=own.rollout.refills,
            engine=self._engine,
            weights=self._weights,
            scorer=self._scorer,
            world=self._world,
            log=log,
            is_frozen=own.rollout.only,
        )

    def _weights(self) -> dict[str, Tensor]:
        """Return the policy's weights; an adapter is merged, and sharded ones are gathered. Collective."""
        return merged_weights(self._module.model)

    def _embedded(self) -> EmbeddedEngine:
        model, own = self._recipe.model, self._own
        assert isinstance(model, ModelConfig)
        return EmbeddedEngine(
            model,
            self._weights(),
            num_slots=own.rollout.num_slots,
            max_length=own.data.max_length + own.rollout.max_new_tokens,
            decode=self._encoder.tokenizer.decode,
            device=self._world.device,
        )

    def _async(self, prompts: GroupPrompts, step: int, log: SampleLog | None) -> AsyncRollouts:
        own, settings = self._own, self._own.asynchronous
        config = ControllerConfig(
            groups_per_batch=own.data.batch_rows,
            group_size=own.rollout.group_size,
            bound=settings.bound,
            ahead=settings.ahead,
            steps_per_batch=own.rollout.steps_per_batch,
        )
        first = step // own.rollout.steps_per_batch * own.data.batch_rows
        controller = RolloutController.rebuilt(
            config,
            log.records() if log is not None else (),
            step=step,
            next_group=first if log is None else max(first, log.next_group),
            rows=prompts.row,
        )
        folder = self._weights_folder()
        store = FileWeightStore(folder.path)

        def publish(weights: Mapping[str, Tensor], probe: Probe, version: int) -> WeightRef:
            ref = store.publish(weights, version, probe)
            store.retire([version])
            return ref

        return AsyncRollouts(
            controller,
            prompts,
            num_workers=settings.workers,
            publish=publish,
            close=folder.close,
            start=lambda number, ref: self._worker(number, folder.path, ref),
            scorer=self._scorer,
            log=log,
            finished=tuple(log.finished()) if log is not None else (),
            judge=self._judge(),
        )

    def _judge(self) -> Callable[[Sequence[ScoredSample]], str]:
        """Return what rejects groups of equal rewards, at most as many in a row as the rounds of refills have."""
        most, num_constant = self._own.rollout.refills * self._own.data.batch_rows, 0

        def judge(group: Sequence[ScoredSample]) -> str:
            nonlocal num_constant
            num_constant = 0 if not most or self._num_used(group) else num_constant + 1
            return "constant" if 0 < num_constant <= most else ""

        return judge

    def _worker(self, number: int, folder: Path, ref: WeightRef) -> RemoteEngine:
        """Start the process of a worker."""
        own, settings = self._own, self._own.asynchronous
        device = "cpu"
        if settings.place == "ray":
            device = "cuda" if settings.gpus else "cpu"
        elif self._world.device.type == "cuda":
            device = f"cuda:{(self._world.size + number) % torch.cuda.device_count()}"
        spec = EngineSpec(
            settings={
                "model": to_data(self._recipe.model, keep_defaults=True),
                "tokenizer": to_data(self._encoder.tokenizer_config, keep_defaults=True),
                "num_slots": own.rollout.num_slots,
                "max_length": own.data.max_length + own.rollout.max_new_tokens,
                "device": device,
            },
            num_threads=settings.threads,
        )
        start = functools.partial(
            RayProcess, num_cpus=settings.threads, num_gpus=settings.gpus, max_frame_bytes=MAX_FRAME_BYTES
        )
        return RemoteEngine(spec, folder, ref, start=start if settings.place == "ray" else None)

    def _weights_folder(self) -> WeightsFolder:
        """Return a new folder for versions of weights; actors on other nodes need one that all nodes see."""
        num_bytes = sum(each.numel() * each.element_size() for each in self._module.model.parameters())
        place = None
        if self._own.asynchronous.place == "ray":
            place = Path(checkpoint_folder(self._recipe.checkpoint.folder, self._recipe.name)).absolute()
        return WeightsFolder(num_bytes, place)

    def _probe(self) -> Probe:
        """Return the policy's log-probabilities of the first prompts. Collective."""
        rows = range(min(_PROBES, self._data.num_rows))
        prompts = [self._data.sequence(self._data.sequences_of(row)[0])[0][:_PROBE_TOKENS].tolist() for row in rows]
        is_float32 = self._recipe.parallel.precision == "float32"
        return make_probe(
            self._module.model,
            [prompt for prompt in prompts if len(prompt) > 1],
            multiple=self._own.asynchronous.probe_factor,
            floor=FLOOR if is_float32 else _FLOOR_HALF,
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

    def opened(step: int) -> SampleLog:
        decode = encoder.tokenizer.decode
        return SampleLog(Path(folder) / FOLDER, step=step, facts=facts, is_fresh=is_fresh and step == 0, decode=decode)

    return opened


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
        "top_k": own.rollout.top_k,
        "top_p": own.rollout.top_p,
    }


def _streams(
    own: RolloutRecipe, recipe: Recipe, module: ObjectiveModule, encoder: ChatEncoder, max_length: int, world: World
) -> dict[str, StreamScorer]:
    """Return what scores the answers of a batch besides the engine, each at the temperature of sampling."""
    found: dict[str, StreamScorer] = {}

    def scorer(model: nn.Module, *, is_base: bool = False) -> RowScorer:
        return RowScorer(model, world.device, temperature=own.rollout.temperature, is_base=is_base)

    def frozen(named: StartingModel | None, longest: int) -> RowScorer:
        start = named or own.model
        assert isinstance(start, StartingModel)
        if named is None and recipe.adapter is not None:  # the model that learns, without its adapter
            assert isinstance(recipe.model, ModelConfig)
            _check_length(start.path, recipe.model, longest)
            return scorer(module.model, is_base=True)
        return scorer(_frozen(start.path, recipe, encoder, longest, world))

    if isinstance(own, PolicyRecipe) and "reference" in module.objective.needs:
        found["reference"] = StreamScorer(score=frozen(own.reference, max_length))
    if own.rollout.steps_per_batch > 1:
        found["proximal"] = StreamScorer(score=scorer(module.model))
    if isinstance(own, DistillationRecipe):
        prefix, begin = tuple(encoder.tokenizer.encode(own.teacher_prefix)), encoder.tokenizer.ids.bos_id

        def prompt(ids: tuple[int, ...]) -> tuple[int, ...]:
            return (ids[0], *prefix, *ids[1:]) if ids[0] == begin else (*prefix, *ids)

        score = frozen(own.teacher, max_length + len(prefix))
        found["teacher"] = StreamScorer(score=score, prompt=prompt if prefix else None)
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
    check_vocabulary(encoder.tokenizer, model.config.vocab_size, encoder.tokenizer_config)
    _check_length(path, model.config, max_length)
    return parallelize(model, recipe.parallel, world, for_training=False)


def _check_length(path: str, config: ModelConfig, max_length: int) -> None:
    if max_length > config.max_length:
        message = f"a prompt and its answer may have {max_length} tokens; the maximum of {path} is {config.max_length}"
        hint = "lower `data.max_length` or `rollout.max_new_tokens`"
        raise SpecError([Problem(message, "shape-conflict", hint=hint)])


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int, config: TokenizerConfig) -> None:
    """Raise SpecError if a tokenizer has ids outside a model's vocabulary."""
    if tokenizer.vocab_size > vocab_size:
        message = f"the tokenizer {config.path} has {tokenizer.vocab_size} ids; the model's vocabulary has {vocab_size}"
        hint = "use the model's own tokenizer, or a model with `model.vocab_size` of at least that"
        raise SpecError([Problem(message, "tokenizer-mismatch", hint=hint)])
