"""Evaluation of answers: an engine answers held-out prompts, verifiers score them; pass@k.

Random numbers depend on the evaluation's seed, the prompt and the sample alone: training draws the same numbers with and
without evaluation, and two evaluations differ by their weights only.

Legend: G prompts of this process, N all prompts, K settings of pass@k.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import torch

from windlass.config.encode import to_data
from windlass.config.loading import load_config
from windlass.core.errors import Problem, SpecError, UsageError
from windlass.post.control.config import EngineConfig, EvaluationConfig
from windlass.post.control.scoring import AnswerScorer, ScoredSample
from windlass.post.data.batches import Places, collate, divide
from windlass.post.data.chat import ChatEncoder, chat_encoder
from windlass.post.data.config import MixtureConfig
from windlass.post.data.prepared import PreparedData, prepare, prepared_root
from windlass.post.environments.engine import EnvironmentSpec, with_environments
from windlass.post.environments.tasks import EnvironmentTasks
from windlass.post.objectives.batch import Scores
from windlass.post.objectives.reward import RewardObjective
from windlass.post.rollout.embedded import EmbeddedEngine
from windlass.post.rollout.engines import build_engine
from windlass.post.rollout.http import HttpEngine
from windlass.post.rollout.types import Sample, SampleId, SampleRequest, Sampling
from windlass.post.weights.probe import check_probe, make_probe
from windlass.train.data.config import TokenizerConfig
from windlass.train.evaluate.lm_eval import PeriodicEvaluation
from windlass.train.hf.sources import StoredCheckpoint, kept_folder_of, load_model, open_model, tokenizer_config_of
from windlass.train.model.adapters import merged_weights
from windlass.train.model.config import ModelConfig
from windlass.train.model.decoder import Decoder
from windlass.train.parallel.world import World, device_of
from windlass.train.randomness import seed_for

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.post.rollout.engine import RolloutEngine

__all__ = ["AnswerEvaluation", "EvaluateAnswers", "evaluate_checkpoint", "pass_at", "prompts_of"]

_POLL_S = 1.0
_ROUND = 4
"""Prompts of a round, as a multiple of the slots; a stop is heard between rounds."""

_PAIR_TOKENS = 8192
"""Most tokens of a forward pass over pairs, padding included."""

_PROBE_TOKENS, _SERVED_FLOOR = 64, 0.3
"""Tokens of a probe, and the difference that is tolerated of a server, which may compute in half precision."""

_TIMES = ("every", "at_start")
"""Settings of an evaluation that only training reads."""

_HINT = "name a verifier, such as `reward.verifiers='[gsm8k]'`"

_COUNTS = ("rewards", "scored", "tokens", "truncated", "answers")


def pass_at(k: int, num_samples: int, num_passed: int) -> float:
    """Return the probability that at least one of k samples passes, estimated without bias from n >= k samples.

    Source: Chen et al. 2021, "Evaluating large language models trained on code", equation 1.
    """
    if num_samples - num_passed < k:
        return 1.0
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def prompts_of(config: EvaluationConfig, data: MixtureConfig) -> MixtureConfig:
    """Return the settings of the held-out prompts: their sources, and the rendering of the training rows."""
    return replace(data, mix=config.mix, transforms=config.transforms)


class AnswerEvaluation:
    """Held-out prompts, how they are answered and what scores the answers.

    Args:
        data: prepared prompts.
        model: architecture; an engine with it exists only while prompts are answered.
        encoder: encoder of the prompts, whose tokenizer decodes answers.
        scorer: scores answers; closed by `close`.
        seed: seed of the recipe; that of sampling is derived from it.

    Raises:
        SpecError: a prompt and its answer may be longer than the model's maximum.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        data: PreparedData,
        *,
        model: ModelConfig,
        encoder: ChatEncoder,
        scorer: AnswerScorer,
        seed: int = 0,
    ) -> None:
        self._config, self._data, self._model, self._encoder, self._scorer = config, data, model, encoder, scorer
        self._length = int(data.lengths().max()) + config.max_new_tokens
        if self._length > model.max_length:
            message = f"a held-out prompt and its answer may have {self._length} tokens; the model's maximum is {model.max_length}"
            raise SpecError([Problem(message, "shape-conflict", hint="lower `evaluate.max_new_tokens`")])
        eos = encoder.tokenizer.ids.eos_id
        self._sampling = Sampling(
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            stop_ids=() if eos is None else (eos,),
            stop_texts=config.stop_texts,
            seed=seed_for(seed, "evaluate"),
        )
        self._truths = data.ground_truths()
        self._tasks = EnvironmentTasks(config.environments or (), data)

    @property
    def num_prompts(self) -> int:
        """Number of held-out prompts."""
        return self._data.num_rows

    def measure(
        self,
        weights: Mapping[str, Tensor],
        *,
        world: World,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> dict[str, float] | None:
        """Return metrics by name, equal on all processes; None if stopped. Collective.

        Each process needs all weights and answers a share of the prompts.

        Args:
            should_stop: called before each round; must return the same on all processes.
        """
        devices = [world.device] if world.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):  # a new decoder draws weights, which are replaced
            engine = self._engine(weights, world.device)
        if self._config.environments:
            spec = EnvironmentSpec.of(self._config.environments, self._config.turn_deadline, self._encoder)
            engine = with_environments(engine, spec)
        sums = [0.0] * (len(_COUNTS) + 2 * len(self._config.pass_at))
        size = _ROUND * self._config.num_slots
        share = world.share
        try:
            for first in range(0, self._data.num_rows, size * share.world):
                if should_stop():
                    return None
                rows = range(first, min(first + size * share.world, self._data.num_rows))[share.rank :: share.world]
                scored = self._answered(engine, rows) if rows else []
                sums = [one + other for one, other in zip(sums, self._sums(scored), strict=True)]
        finally:
            engine.close()
        replicas = world.size // share.world
        return self._metrics([value / replicas for value in world.sum_on_host(sums)])

    def close(self) -> None:
        """End the processes of verifiers; idempotent."""
        self._scorer.close()

    def _engine(self, weights: Mapping[str, Tensor], device: torch.device) -> RolloutEngine:
        """Return an engine with weights; of a server, whether it has these weights is checked."""
        chosen, tokenizer = self._config.engine, self._encoder.tokenizer
        sizes: dict[str, Any] = {"num_slots": self._config.num_slots, "max_length": self._length}
        if chosen == EngineConfig():
            return EmbeddedEngine(self._model, weights, **sizes, decode=tokenizer.decode, device=device)
        settings = {
            "model": to_data(self._model, keep_defaults=True),
            "tokenizer": to_data(self._encoder.tokenizer_config, keep_defaults=True),
            **sizes,
            "device": str(device),
            **chosen.settings,
        }
        engine = build_engine(chosen.name, settings)
        if engine.facts.has_weight_update:
            engine.load(weights, 0)
        if isinstance(engine, HttpEngine):
            engine.check_tokenizer(tokenizer)
            model = Decoder(self._model)
            model.load_state_dict(dict(weights))
            prompts = [
                self._data.sequence(row)[0][:_PROBE_TOKENS].tolist() for row in range(min(4, self._data.num_rows))
            ]
            check_probe(engine, make_probe(model, [each for each in prompts if len(each) > 1], floor=_SERVED_FLOOR), 0)
        return engine

    def _answered(self, engine: RolloutEngine, rows: range) -> list[ScoredSample]:
        """Return the scored answers to some prompts, in the order of prompts."""
        prompts = {row: tuple(self._data.sequence(row)[0].tolist()) for row in rows}
        seed = self._sampling.seed
        tasks = {row: self._tasks.task(row, row, seed) for row in rows}
        work = [
            SampleRequest(
                id=SampleId(group=row, member=member),
                prompt_ids=prompts[row],
                sampling=self._sampling,
                task=tasks[row],
            )
            for row in rows
            for member in range(self._config.samples)
        ]
        done: list[Sample] = []
        submitted = 0
        while len(done) < len(work):
            submitted += engine.submit(work[submitted:]) if submitted < len(work) else 0
            done += engine.poll(_POLL_S)
        done.sort(key=lambda sample: sample.id)
        truths = [self._truths[sample.id.group] if self._truths else None for sample in done]
        return self._scorer.score(done, [prompts[sample.id.group] for sample in done], truths)

    def _sums(self, scored: Sequence[ScoredSample]) -> list[float]:
        """Return sums over answers, then for each k the sum of pass@k and the number of prompts that it covers."""
        known = [each.reward for each in scored if not math.isnan(each.reward)]
        tokens = sum(each.sample.num_policy_tokens for each in scored)
        truncated = sum(each.sample.finish == "length" for each in scored)
        sums = [math.fsum(known), float(len(known)), float(tokens), float(truncated), float(len(scored))]
        groups: dict[int, list[float]] = {}
        for each in scored:
            rewards = groups.setdefault(each.sample.id.group, [])
            rewards += [] if math.isnan(each.reward) else [each.reward]
        for k in self._config.pass_at:
            found = [
                pass_at(k, len(rewards), sum(reward >= self._config.pass_from for reward in rewards))
                for rewards in groups.values()
                if len(rewards) >= k
            ]
            sums += [math.fsum(found), float(len(found))]
        return sums

    def _metrics(self, sums: Sequence[float]) -> dict[str, float]:
        named = dict(zip(_COUNTS, sums, strict=False))
        answers = named["answers"]
        passed = sums[len(_COUNTS) :]
        metrics = {
            f"eval/pass@{k}": _mean(passed[2 * place], passed[2 * place + 1])
            for place, k in enumerate(self._config.pass_at)
        }
        return metrics | {
            "eval/reward": _mean(named["rewards"], named["scored"]),
            "eval/unscored": answers - named["scored"],
            "eval/answer_tokens": _mean(named["tokens"], answers),
            "eval/truncated": _mean(named["truncated"], answers),
        }


def _mean(total: float, count: float) -> float:
    return total / count if count else math.nan


class EvaluateAnswers(PeriodicEvaluation):
    """Callback that answers held-out prompts with the current weights and records the metrics of `eval/`."""

    def __init__(self, evaluation: AnswerEvaluation, config: EvaluationConfig) -> None:
        super().__init__(every=config.every, at_start=config.at_start)
        self._evaluation = evaluation

    def measure(self) -> Mapping[str, float] | None:
        """Return the metrics of the current weights. Collective; an adapter is merged, sharded weights are gathered."""
        weights = merged_weights(self.trainer.module.model)
        return self._evaluation.measure(weights, world=self.trainer.world, should_stop=self.trainer.agree_on_stop)

    def on_end(self) -> None:
        """End the processes of verifiers."""
        self._evaluation.close()


def evaluate_checkpoint(
    checkpoint: str,
    rows: str,
    settings: Sequence[str] = (),
    *,
    template: str = "",
    tokenizer: str = "",
    device: str = "auto",
) -> dict[str, float]:
    """Return the metrics of a model on held-out rows: prompts that it answers, or pairs for a reward model.

    Loads the model into memory.

    Args:
        checkpoint: any path that `open_model` accepts.
        rows: source of prompts, or of pairs.
        settings: fields of `EvaluationConfig`, such as `samples=8`.
        template: as in a recipe; if empty, the one of the checkpoint's recipe, else `auto`.
        tokenizer: as in a recipe; if empty, the model's own.

    Raises:
        NotFoundError, CheckpointError: there is no checkpoint, or it is damaged.
        SpecError: an invalid setting, no tokenizer, a row of another form, or a length above the model's.
        UsageError: a setting has no effect on this model, or nothing scores the answers.
        PreconditionError: `device` is a GPU, and there is none.
    """
    config = load_config(
        EvaluationConfig, json.dumps({"mix": [{"source": rows}]}), source="evaluate", overrides=settings
    ).value
    world = World(device=device_of(device))
    model = load_model(checkpoint, device=world.device)
    is_scored = model.config.head == "scalar"
    _check_settings(config, settings, is_scored=is_scored)
    recipe = _recorded_recipe(checkpoint)
    wanted = TokenizerConfig(path=tokenizer) if tokenizer else tokenizer_config_of(checkpoint, TokenizerConfig())
    data = MixtureConfig(
        mix=config.mix,
        transforms=config.transforms,
        template=template or str(recipe.get("data", {}).get("template", "auto")),
        max_length=model.config.max_length,
        microbatch_tokens=max(_PAIR_TOKENS, model.config.max_length),
    )
    encoder = chat_encoder(data, wanted, folder="" if tokenizer else kept_folder_of(checkpoint))
    prepared = prepare(data, "pair" if is_scored else "prompt", encoder, prepared_root(data))
    if is_scored:
        at: Places = "answer" if recipe.get("pooling") == "answer" else "last"
        return _pairs_measured(model, prepared, at, pad_id=encoder.tokenizer.ids.pad_id, device=world.device)
    assert config.reward is not None  # checked above
    has_environments = bool(config.environments)
    if not config.reward.verifiers and not has_environments:
        raise UsageError("nothing scores the answers", hint=_HINT, code="missing-argument")
    scorer = AnswerScorer.of(config.reward, encoder.tokenizer, has_environments=has_environments)
    evaluation = AnswerEvaluation(config, prepared, model=model.config, encoder=encoder, scorer=scorer)
    try:
        return evaluation.measure(dict(model.named_parameters()), world=world) or {}
    finally:
        evaluation.close()


def _check_settings(config: EvaluationConfig, settings: Sequence[str], *, is_scored: bool) -> None:
    """Raise UsageError if a setting has no effect here, or if nothing scores answers."""
    names = [word.partition("=")[0].lstrip("-~") for word in settings]
    used = (
        ("mix", "transforms")
        if is_scored
        else tuple(field.name for field in fields(config) if field.name not in _TIMES)
    )
    for name in names:
        if name.partition(".")[0] not in used:
            what = "with a reward model" if is_scored else "outside training"
            raise UsageError(f"`{name}` has no effect {what}", hint="remove it", code="setting-unused")
    if config.reward is None and not is_scored:
        raise UsageError("nothing scores the answers", hint=_HINT, code="missing-argument")


def _recorded_recipe(checkpoint: str) -> Mapping[str, Any]:
    with open_model(checkpoint) as source:
        found = source.record.get("recipe") if isinstance(source, StoredCheckpoint) else None
    return found if isinstance(found, dict) else {}


def _pairs_measured(
    model: Decoder, data: PreparedData, at: Places, *, pad_id: int, device: torch.device
) -> dict[str, float]:
    """Return the share of pairs whose chosen answer has the higher reward, and the mean difference."""
    objective = RewardObjective()
    sums: dict[str, float] = {}
    lengths = data.lengths()
    costs = {row: [int(lengths[number]) for number in data.sequences_of(row)] for row in range(data.num_rows)}
    for part in divide(costs, num_processes=1, budget=_PAIR_TOKENS)[0]:
        rows = collate(data, part, weights=objective.weights, pad_id=pad_id, are_pairs=True, at=at).to(device)
        with torch.no_grad():
            values_BT = model(rows.tokens_BT, rows.documents_BT)
        for name, total in objective.sums(rows, Scores(values_BT=values_BT)).metrics.items():
            sums[name] = sums.get(name, 0.0) + float(total)
    return {f"eval/{name}": total / data.num_rows for name, total in sums.items()}
