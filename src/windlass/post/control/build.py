"""Construction of rollouts: what samples are generated with, scored with, stored in and learned as."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from windlass import report
from windlass.config.encode import to_data
from windlass.core.errors import Problem, SpecError, WindlassError
from windlass.post.control.assembly import PROXIMAL, BatchAssembly, StreamScorer
from windlass.post.control.asynchronous import AsyncRollouts
from windlass.post.control.config import EngineConfig
from windlass.post.control.controller import ControllerConfig, RolloutController
from windlass.post.control.identity import facts_of_samples, log_of, run_digest
from windlass.post.control.prompts import PromptPools
from windlass.post.control.rollouts import RolloutLoader
from windlass.post.control.scoring import AnswerScorer, ScoredSample
from windlass.post.control.shared import SharedRollouts
from windlass.post.control.source import GroupPrompts, SampleSource
from windlass.post.control.synchronous import SyncRollouts
from windlass.post.control.workers import JoiningWorker
from windlass.post.data.chat import ChatEncoder
from windlass.post.data.prepared import PreparedData
from windlass.post.environments.engine import EnvironmentEngine, EnvironmentSpec, with_environments
from windlass.post.objectives.config import AdvantageConfig
from windlass.post.objectives.module import ObjectiveModule
from windlass.post.recipe import DistillationRecipe, PolicyRecipe, RolloutRecipe, ServedTeacher, StartingModel
from windlass.post.reference import RowScorer
from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.post.rollout.engine import EngineFacts, RolloutEngine
from windlass.post.rollout.engines import build_engine
from windlass.post.rollout.http import HttpEngine
from windlass.post.samples.log import SampleLog
from windlass.post.samples.reader import SampleReplay
from windlass.post.weights.files import FileWeightStore
from windlass.post.weights.folder import WeightsFolder
from windlass.post.weights.probe import FLOOR, check_probe, make_probe
from windlass.post.weights.store import AdapterBase, Probe, WeightRef
from windlass.post.workers.joining import WorkerListener, tell_finished
from windlass.post.workers.ray import RayProcess
from windlass.post.workers.remote import MAX_FRAME_BYTES, EngineSpec, RemoteEngine, StartProcess
from windlass.train.build import checkpoint_folder
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenizer import Tokenizer
from windlass.train.hf.sources import load_model
from windlass.train.model.adapters import adapter_scales, adapter_weights, base_weights, merged_weights
from windlass.train.model.config import ModelConfig
from windlass.train.parallel.apply import parallelize
from windlass.train.parallel.world import World
from windlass.train.recipe import Recipe

__all__ = ["build_rollouts", "check_vocabulary"]

_PROBES, _PROBE_TOKENS = 4, 64
"""Prompts of a probe, and tokens of each."""

_FLOOR_HALF = 0.3
"""Difference that is tolerated between half precision on one side and float32 on the other."""


def build_rollouts(
    own: RolloutRecipe, recipe: Recipe, module: ObjectiveModule, data: PreparedData, encoder: ChatEncoder, world: World
) -> RolloutLoader:
    """Return the loader of a run that learns from its own answers. Collective.

    Raises:
        SpecError: prompts and answers are longer than the model's maximum, or stored samples do not fit.
    """
    assert isinstance(recipe.model, ModelConfig)
    rollout = own.rollout
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
        scorer=AnswerScorer.of(
            rewards, encoder.tokenizer, has_environments=rewards is not None and bool(rollout.environments)
        ),
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
        gather=world.from_all,
        is_in_order=not own.asynchronous.bound and not rollout.replay,
        finish=sources.finish,
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
        self._replay: SampleReplay | None = None
        self._engine: RolloutEngine | None = None
        factors = scorer.factors
        if own.rollout.replay:
            facts, steps = facts_of_samples(own, encoder), own.rollout.steps_per_batch
            self._replay = SampleReplay(own.rollout.replay, facts=facts, factors=factors, steps_per_batch=steps)
            return
        self._run = run_digest(own, recipe, data, self._weights())
        self._open_log = log_of(own, recipe, encoder, self._run, tuple(factors))
        if not own.asynchronous.bound:
            self._engine = self._own_engine()
            _check_facts(self._engine.facts, own)

    def open(self, prompts: GroupPrompts, step: int) -> SampleSource:
        """Open the source at a step."""
        if self._replay is not None:
            return self._replay
        log = self._open_log(step) if self._open_log is not None and self._world.is_main else None
        own = self._own
        if self._engine is None:
            model, has_adapter = self._module.model, self._recipe.adapter is not None
            base = base_weights(model) if has_adapter else None
            weights = functools.partial(adapter_weights, model) if has_adapter else self._weights
            rollouts = self._async(prompts, step, log, base) if self._world.is_main else None
            return SharedRollouts(rollouts, weights, self._probe, self._world)
        spec = self._environments()
        engine = self._engine if spec is None else with_environments(self._engine, spec)
        return SyncRollouts(
            prompts,
            groups_per_batch=own.data.batch_rows,
            group_size=own.rollout.group_size,
            num_used=self._num_used,
            refills=own.rollout.refills,
            engine=engine,
            release=engine.release if isinstance(engine, EnvironmentEngine) else lambda: None,
            weights=self._weights,
            scorer=self._scorer,
            world=self._world,
            log=log,
            is_frozen=own.rollout.only,
            check=self._check_server if isinstance(self._engine, HttpEngine) else None,
            lends=None if own.rollout.colocate == "none" else own.rollout.colocate,
        )

    def _weights(self) -> dict[str, Tensor]:
        """Return the policy's weights; an adapter is merged, and sharded ones are gathered. Collective."""
        return merged_weights(self._module.model)

    def _own_engine(self) -> RolloutEngine:
        """Return the engine of this process."""
        model, own = self._recipe.model, self._own
        assert isinstance(model, ModelConfig)
        chosen = own.rollout.engine
        if chosen == EngineConfig():
            return EmbeddedEngine(
                model,
                self._weights(),
                num_slots=own.rollout.num_slots,
                max_length=own.data.max_length + own.rollout.max_new_tokens,
                decode=self._encoder.tokenizer.decode,
                device=self._world.device,
            )
        if chosen.name == "http" and self._world.size > 1:
            message = f"the engine `http` needs a single process; this job has {self._world.size}"
            raise SpecError([Problem(message, "unsupported-setting", hint="start it without torchrun")])
        engine = build_engine(chosen.name, self._engine_settings(str(self._world.device)))
        if isinstance(engine, HttpEngine):
            engine.check_tokenizer(self._encoder.tokenizer)
        return engine

    def _environments(self) -> EnvironmentSpec | None:
        rollout = self._own.rollout
        if not rollout.environments:
            return None
        return EnvironmentSpec.of(rollout.environments, rollout.turn_deadline, self._encoder)

    def _engine_settings(self, device: str) -> dict[str, Any]:
        own = self._own
        return {
            "model": to_data(self._recipe.model, keep_defaults=True),
            "tokenizer": to_data(self._encoder.tokenizer_config, keep_defaults=True),
            "num_slots": own.rollout.num_slots,
            "max_length": own.data.max_length + own.rollout.max_new_tokens,
            "device": device,
            **own.rollout.engine.settings,
        }

    def _check_server(self, version: int) -> None:
        """Compare a server's log-probabilities with the policy's. Collective."""
        assert self._engine is not None
        check_probe(self._engine, self._probe(), version)

    def _async(
        self, prompts: GroupPrompts, step: int, log: SampleLog | None, base: Mapping[str, Tensor] | None
    ) -> AsyncRollouts:
        """Build rollouts in workers. With the frozen base of an adapter, only the adapter is published at each step."""
        own, settings = self._own, self._own.asynchronous
        config = ControllerConfig(
            groups_per_batch=own.data.batch_rows,
            group_size=own.rollout.group_size,
            bound=settings.bound,
            ahead=settings.ahead,
            steps_per_batch=own.rollout.steps_per_batch,
        )
        first = prompts.position if prompts.pools.is_on else step // own.rollout.steps_per_batch * own.data.batch_rows
        pools = _planning(prompts, log, step)
        controller = RolloutController.rebuilt(
            config,
            log.records() if log is not None else (),
            step=step,
            next_group=first if log is None else max(first, log.next_group),
            rows=prompts.row,
            choose=pools.next_group,
        )
        folder = self._weights_folder()
        store, adapter = FileWeightStore(folder.path), None
        if base is not None:
            adapter = AdapterBase(base=store.publish_base(base), scales=adapter_scales(self._module.model))

        def publish(weights: Mapping[str, Tensor], probe: Probe, version: int) -> WeightRef:
            ref = store.publish(weights, version, probe, adapter=adapter)
            store.retire([version])
            return ref

        server = self._server()

        def close() -> None:
            if server is not None:
                server.close()
            folder.close()

        return AsyncRollouts(
            controller,
            prompts,
            num_workers=settings.workers,
            publish=publish,
            close=close,
            start=lambda number, ref: self._worker(number, folder.path, ref),
            arrivals=None if server is None else lambda ref: self._arrivals(server, folder.path, ref),
            scorer=self._scorer,
            log=log,
            finished=tuple(log.finished()) if log is not None else (),
            judge=self._judge(),
            pools=pools,
            open_work=None if settings.in_flight == "finish" else settings.in_flight,
        )

    def _judge(self) -> Callable[[Sequence[ScoredSample]], str]:
        """Return what rejects groups of equal rewards, at most as many in a row as the rounds of refills have."""
        most, num_constant = self._own.rollout.refills * self._own.data.batch_rows, 0

        def judge(group: Sequence[ScoredSample]) -> str:
            nonlocal num_constant
            num_constant = 0 if not most or self._num_used(group) else num_constant + 1
            return "constant" if 0 < num_constant <= most else ""

        return judge

    def _server(self) -> WorkerListener | None:
        """Return the place where workers that are started elsewhere find this learner."""
        if self._own.asynchronous.place != "join":
            return None
        return WorkerListener(self._folder, report.place().address, max_frame_bytes=MAX_FRAME_BYTES)

    def _arrivals(self, server: WorkerListener, folder: Path, ref: WeightRef) -> list[JoiningWorker]:
        spec, known = self._spec(0), (server.address.incarnation - 1, server.address.incarnation)
        return [
            JoiningWorker(
                name=each.name,
                engine=RemoteEngine(spec, folder, ref, start=each.begin),
                may_keep=each.incarnation in known,
            )
            for each in server.arrivals()
        ]

    def finish(self) -> None:
        """Let workers that were started elsewhere end, as the run is finished."""
        if self._own.asynchronous.place == "join" and self._world.is_main:
            tell_finished(self._folder)

    @property
    def _folder(self) -> Path:
        return Path(checkpoint_folder(self._recipe.checkpoint.folder, self._recipe.name)).absolute()

    def _worker(self, number: int, folder: Path, ref: WeightRef) -> RemoteEngine:
        """Start the process of a worker."""
        settings = self._own.asynchronous
        start: StartProcess = functools.partial(
            RayProcess, num_cpus=settings.threads, num_gpus=settings.gpus, max_frame_bytes=MAX_FRAME_BYTES
        )
        return RemoteEngine(self._spec(number), folder, ref, start=start if settings.place == "ray" else None)

    def _spec(self, number: int) -> EngineSpec:
        """Return the engine of a worker."""
        own, settings = self._own, self._own.asynchronous
        device = "cpu"
        if settings.place == "ray":
            device = "cuda" if settings.gpus else "cpu"
        elif self._world.device.type == "cuda":
            device = f"cuda:{(self._world.size + number) % torch.cuda.device_count()}"
        environments = self._environments()
        return EngineSpec(
            engine=own.rollout.engine.name,
            settings=self._engine_settings(device),
            environments=None if environments is None else asdict(environments),
            run=self._run,
            num_threads=settings.threads,
        )

    def _weights_folder(self) -> WeightsFolder:
        """Return a new folder for versions of weights; actors on other nodes need one that all nodes see."""
        num_bytes = sum(each.numel() * each.element_size() for each in self._module.model.parameters())
        place = None
        if self._own.asynchronous.place != "process":
            place = self._folder
        return WeightsFolder(num_bytes, place)

    def _probe(self) -> Probe:
        """Return the policy's log-probabilities of the first prompts. Collective."""
        rows = range(min(_PROBES, self._data.num_rows))
        prompts = [self._data.sequence(self._data.sequences_of(row)[0])[0][:_PROBE_TOKENS].tolist() for row in rows]
        is_own = self._own.rollout.engine.name not in {"http", "vllm"}  # whose weights may have half precision
        is_float32 = is_own and self._recipe.parallel.precision == "float32"
        return make_probe(
            self._module.model,
            [prompt for prompt in prompts if len(prompt) > 1],
            multiple=self._own.asynchronous.probe_factor,
            floor=FLOOR if is_float32 else _FLOOR_HALF,
        )


def _planning(prompts: GroupPrompts, log: SampleLog | None, step: int) -> PromptPools:
    """Return the choice of prompts after all batches that are reserved, also those that a resumed run learns again."""
    pools = prompts.pools.copy()
    for number in (number for number in (log.steps if log is not None and pools.is_on else ()) if number >= step):
        assert log is not None
        for row, rewards in (*log.visits(number), *prompts.visits(log.stored(number) or [])):
            pools.visit(row, rewards)
    return pools


def _check_facts(facts: EngineFacts, own: RolloutRecipe) -> None:
    """Raise SpecError if an engine cannot do what a recipe asks of it."""
    longest = own.data.max_length + own.rollout.max_new_tokens
    lacks = {
        "weights cannot be changed": not facts.has_weight_update and not own.rollout.only,
        "stop texts are not possible": not facts.has_stop_texts and bool(own.rollout.stop_texts),
        f"sequences have at most {facts.max_length} tokens, and {longest} are needed": facts.max_length < longest,
    }
    if problems := [
        Problem(f"engine `{facts.name}`: {what}", "unsupported-setting", hint="choose another `rollout.engine`")
        for what, is_lacking in lacks.items()
        if is_lacking
    ]:
        raise SpecError(problems)


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
        found[PROXIMAL] = StreamScorer(score=scorer(module.model))
    if isinstance(own, DistillationRecipe):
        prefix, begin = tuple(encoder.tokenizer.encode(own.teacher_prefix)), encoder.tokenizer.ids.bos_id

        def prompt(ids: tuple[int, ...]) -> tuple[int, ...]:
            return (ids[0], *prefix, *ids[1:]) if ids[0] == begin else (*prefix, *ids)

        longest, read = max_length + len(prefix), prompt if prefix else None
        if isinstance(own.teacher, ServedTeacher):
            found["teacher"] = StreamScorer(engine=_served(own.teacher, encoder, longest), prompt=read)
        else:
            found["teacher"] = StreamScorer(score=frozen(own.teacher, longest), prompt=read)
    return found


def _served(teacher: ServedTeacher, encoder: ChatEncoder, max_length: int) -> HttpEngine:
    """Return the engine of a teacher on a server, whose tokenizer is the run's."""
    engine = HttpEngine(
        teacher.url,
        vocab_size=encoder.tokenizer.vocab_size,
        max_length=max_length,
        served_model=teacher.model,
        num_slots=teacher.num_requests,
        key_variable=teacher.key_variable,
        timeout_s=teacher.timeout,
        retries=teacher.retries,
    )
    engine.check_tokenizer(encoder.tokenizer)
    return engine


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
