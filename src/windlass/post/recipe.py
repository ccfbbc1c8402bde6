"""Recipes of post-training, as data; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Annotated, ClassVar, Literal

from windlass.config.annotations import Diagnostic, Doc, DurationText, Key, Range
from windlass.core.errors import Problem, SpecError, WindlassError
from windlass.post.control.config import (
    AsyncConfig,
    EngineConfig,
    EvaluationConfig,
    RewardsConfig,
    RolloutConfig,
    check_address,
)
from windlass.post.data.config import MixtureConfig, RowKind
from windlass.post.objectives.config import (
    AdvantageConfig,
    CorrectionConfig,
    DistillationConfig,
    PolicyConfig,
    PreferenceConfig,
    RewardConfig,
    SupervisedConfig,
)
from windlass.train.model.config import ModelConfig
from windlass.train.recipe import Recipe

__all__ = [
    "DistillationRecipe",
    "PolicyRecipe",
    "PostRecipe",
    "PreferenceRecipe",
    "RewardRecipe",
    "RolloutRecipe",
    "ServedTeacher",
    "SftRecipe",
    "StartingModel",
    "architecture",
]

_OF_EQUAL_ROWS = ("batch-size", "sequence-length", "lm-eval", "downstream")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingModel:
    """A trained model to start from: its architecture, weights and tokenizer."""

    IS_ASSUMED: ClassVar[bool] = True

    kind: Literal["start"] = "start"
    path: Annotated[
        str,
        Key("from"),
        Doc("A checkpoint, a folder of checkpoints (the newest is used), or `hf:PATH`, a folder or name on the hub."),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTeacher:
    """A teacher on a server that scores token ids, such as `vllm serve`."""

    IS_ASSUMED: ClassVar[bool] = True

    kind: Literal["served"] = "served"
    url: Annotated[str, Doc("Address of the server, such as `http://node7:8000`.")]
    model: Annotated[str, Doc("Name of the model at the server; empty: its only one.")] = ""
    key_variable: Annotated[str, Doc("Environment variable with the server's key; empty: it needs none.")] = ""
    timeout: Annotated[float, DurationText(), Range(above=0), Doc("Longest time of a request.")] = 600.0
    retries: Annotated[int, Range(min=0), Doc("Attempts after the first, if the server fails or is overloaded.")] = 4
    num_requests: Annotated[int, Range(min=1), Doc("Requests at the same time.")] = 16

    def check(self) -> Iterator[Diagnostic]:
        """Check the address."""
        yield from check_address(self.url, "url")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostRecipe(Recipe):
    """A post-training run on prepared rows."""

    BUILDER: ClassVar[str] = "windlass.post.build:build_post_trainer"
    BASE_KEY: ClassVar[str] = "model.from"
    ROWS: ClassVar[RowKind] = "chat"

    model: Annotated[  # type: ignore[assignment]  # not the types of a training recipe
        StartingModel | ModelConfig, Doc("Model to start from, or a new one: a preset's name or settings.")
    ]
    data: Annotated[MixtureConfig, Doc("Rows to learn from.")]  # type: ignore[assignment]  # as above
    evaluate: Annotated[
        EvaluationConfig | None, Doc("Held-out prompts to answer during training; null: none. Not for reward models.")
    ] = None

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several parts."""
        yield from super(PostRecipe, self).check()
        if isinstance(self.model, StartingModel):
            if not self.model.path:
                hint = "set `model.from` to a checkpoint or `hf:PATH`, or `model` to a preset to begin from scratch"
                yield "model.from", "no model to start from", "missing-key", hint
            if self.checkpoint.load.path:
                message = "both `model.from` and `checkpoint.load.path` name a model"
                yield "checkpoint.load.path", message, "conflicting-options", "remove one of them"
        for name, is_set in (
            ("train_module", self.train_module is not None),
            ("parallel.strict", self.parallel.strict is not None),
            ("parallel.pipeline.stages", self.parallel.pipeline.stages > 1),
            ("parallel.context", self.parallel.context > 1),
        ):
            if is_set:
                yield name, f"`{name}` is not supported in post-training", "setting-unused", "remove it"
        for name, config in self.callbacks.items():
            if config.kind in _OF_EQUAL_ROWS:
                message = f"callbacks of kind {config.kind} need rows of one length, and post-training has none"
                yield f"callbacks.{name}", message, "setting-unused", "remove it"
        yield from self._check_evaluation()

    def _check_evaluation(self) -> Iterator[Diagnostic]:
        if self.evaluate is not None and self.ROWS == "pair" and self.HEAD == "scalar":
            message = "a reward model answers no prompts"
            yield "evaluate", message, "setting-unused", "remove it; `windlass ckpt evaluate` measures its accuracy"
        elif self.evaluate is not None and self.evaluate.engine.name == "http":
            message = "an evaluation during training needs the weights of that step, and a server has others"
            hint = "use `embedded` or `transformers`; `windlass ckpt evaluate` measures a server of a checkpoint"
            yield "evaluate.engine", message, "unsupported-setting", hint
        elif self.evaluate is not None and self.evaluate.reward is None and not isinstance(self, PolicyRecipe):
            hint = "name a verifier, such as `evaluate.reward.verifiers=[gsm8k]`"
            yield "evaluate.reward", "nothing scores the answers", "missing-key", hint
        elif self.evaluate is not None and self.evaluate.reward is not None and not self.evaluate.reward.verifiers:
            own = self.evaluate.environments
            if not (self.rollout.environments if own is None and isinstance(self, RolloutRecipe) else own):
                yield "evaluate.reward.verifiers", "no verifier", "missing-key", "name one, such as `[gsm8k]`"

    def settled(self) -> Recipe:
        """Return the recipe with the architecture of its starting model, and the head that it trains. Reads files.

        Raises:
            SpecError: the model or the adapter cannot be read.
        """
        model = architecture(self.model.path) if isinstance(self.model, StartingModel) else self.model
        return super(PostRecipe, replace(self, model=replace(model, head=self.HEAD))).settled()

    @property
    def base_path(self) -> str:
        """Path of the model that an adapter is trained beside; empty if there is none."""
        return self.model.path if isinstance(self.model, StartingModel) else ""


def architecture(path: str) -> ModelConfig:
    """Return the settings of a trained model. Reads files.

    Raises:
        SpecError: it cannot be read.
    """
    from windlass.train.hf.sources import open_model  # lazy: torch costs 2 s

    try:
        with open_model(path) as source:
            return source.config
    except WindlassError as error:
        raise SpecError([Problem(f"model.from: {error.message}", error.code, hint=error.hint)]) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class SftRecipe(PostRecipe):
    """Supervised fine-tuning: the answers of chats are learned, their prompts are not."""

    objective: Annotated[SupervisedConfig, Doc("The loss.")] = SupervisedConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRecipe(PostRecipe):
    """A reward model: a scalar head learns to prefer the chosen answer of each pair."""

    ROWS: ClassVar[RowKind] = "pair"
    HEAD: ClassVar[Literal["vocabulary", "scalar"]] = "scalar"

    objective: Annotated[RewardConfig, Doc("The loss.")] = RewardConfig()
    pooling: Annotated[
        Literal["last", "answer"],
        Doc("Reward of a sequence. last: the output at its last token, as transformers computes it; answer: the mean."),
    ] = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceRecipe(PostRecipe):
    """Direct preference optimisation on pairs, against a reference model."""

    ROWS: ClassVar[RowKind] = "pair"

    objective: Annotated[PreferenceConfig, Doc("The losses.")] = PreferenceConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecipe(PostRecipe):
    """A run on answers that the model generates while it learns."""

    ROWS: ClassVar[RowKind] = "prompt"

    rollout: Annotated[RolloutConfig, Doc("How answers are generated.")] = RolloutConfig()
    asynchronous: Annotated[AsyncConfig, Key("async"), Doc("Generation beside learning.")] = AsyncConfig()

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several parts."""
        yield from super(RolloutRecipe, self).check()
        yield from self._check_async()
        yield from self._check_engine()
        longest = self.data.max_length + self.rollout.max_new_tokens
        if longest > self.data.microbatch_tokens:
            message = f"a prompt and its answer may have {longest} tokens, more than a microbatch"
            yield "data.microbatch_tokens", message, "shape-conflict", f"write at least {longest}"

    def _check_engine(self) -> Iterator[Diagnostic]:
        """Check that the engine can do what is asked of it."""
        engine, rollout = self.rollout.engine, self.rollout
        if engine != EngineConfig() and rollout.replay:
            yield "rollout.engine", "`rollout.replay` generates nothing", "setting-unused", "remove it"
        if engine.has_frozen_weights and not rollout.only:
            message = "the server's weights are frozen, and this run changes the policy's"
            hint = (
                "set `rollout.engine.settings.weights=reload` and a folder, or generate alone with `rollout.only=true`"
            )
            yield "rollout.engine.settings.weights", message, "unsupported-setting", hint
        if engine.name == "http":
            is_plain = rollout.temperature == 1.0 and rollout.samples_all
            if engine.settings.get("logprobs", "raw") == "raw" and not is_plain:
                message = (
                    "log-probabilities of the sampling distribution are needed, and `logprobs: raw` are the model's own"
                )
                hint = "start the server with `--logprobs-mode processed_logprobs` and set `logprobs: processed`"
                yield "rollout.engine.settings.logprobs", message, "unsupported-setting", hint
            if self.asynchronous.workers > 1:
                message = "one server cannot have weights of two workers"
                yield "async.workers", message, "unsupported-setting", "write 1"
        if engine.name == "vllm" and not self.asynchronous.bound and not rollout.replay:
            message = "`vllm` generates in worker processes, which `async.bound: 0` does not start"
            yield "rollout.engine", message, "unsupported-setting", "set `async.bound=1` with `async.ahead=0`"

    def _check_async(self) -> Iterator[Diagnostic]:
        bound, steps = self.asynchronous.bound, self.rollout.steps_per_batch
        if not bound:
            for name in (each.name for each in fields(AsyncConfig) if each.name != "bound"):
                if getattr(self.asynchronous, name) != getattr(AsyncConfig(), name):
                    message = f"async.{name} has no effect with `async.bound: 0`"
                    yield f"async.{name}", message, "setting-unused", "set `async.bound=2`, or remove it"
            return
        if self.rollout.colocate != "none":
            message = (
                f"rollout.colocate has no effect with async.bound {bound}: workers generate while the model learns"
            )
            yield "rollout.colocate", message, "setting-unused", "remove it, or write `async.bound=0`"
        if self.asynchronous.place == "join":
            if self.asynchronous.workers != AsyncConfig().workers:
                message = "async.workers has no effect with `async.place: join`: workers are started elsewhere"
                yield "async.workers", message, "setting-unused", "remove it"
            if self.no_checkpoints or "://" in self.checkpoint.folder:
                message = "`async.place: join` needs a folder of checkpoints, where workers find the learner"
                yield "async.place", message, "unsupported-setting", "use a folder that all nodes see"
        if self.asynchronous.gpus and self.asynchronous.place != "ray":
            message = "async.gpus has no effect without `async.place: ray`"
            yield "async.gpus", message, "setting-unused", "set `async.place=ray`, or remove it"
        if self.rollout.only or self.rollout.replay:
            name = "only" if self.rollout.only else "replay"
            message = f"async.bound has no effect with `rollout.{name}`: nothing is learned while answers are generated"
            yield "async.bound", message, "setting-unused", "write 0"
        if bound < steps * (self.asynchronous.ahead + 1) - 1:
            message = f"async.bound of {bound} leaves no room for {self.asynchronous.ahead} batches ahead"
            least = steps * (self.asynchronous.ahead + 1) - 1
            yield "async.bound", message, "shape-conflict", f"write at least {least}, or lower `async.ahead`"

    def _check_correction(self, correction: CorrectionConfig | None) -> Iterator[Diagnostic]:
        """Check that samples of other weights than those that learn from them are corrected for."""
        bound = self.asynchronous.bound
        if correction is None and (bound or self.rollout.replay):
            whose = f"async.bound {bound}, answers are of older weights"
            whose = whose if bound else "`rollout.replay`, answers are of another policy"
            message = f"with {whose}, and nothing corrects that"
            hint = "set `objective.correction={clamp_max: 2}` (or `mask_max`), at the level of tokens or sequences"
            yield "objective.correction", message, "missing-key", hint


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecipe(RolloutRecipe):
    """Reinforcement learning: answers to prompts are generated, scored and learned by their advantage in the group."""

    reward: Annotated[RewardsConfig, Doc("How answers are scored.")]
    advantage: Annotated[AdvantageConfig, Doc("Advantages from rewards.")] = AdvantageConfig()
    objective: Annotated[PolicyConfig, Doc("The loss.")] = PolicyConfig()
    reference: Annotated[
        StartingModel | None,
        Doc("Model of the KL penalty, kept in memory besides the one that learns; null: the starting model."),
    ] = None

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several parts."""
        yield from super(PolicyRecipe, self).check()
        if not self.reward.verifiers and not self.rollout.environments:
            hint = "name one, such as `[gsm8k]`, or an environment in `rollout.environments`"
            yield "reward.verifiers", "no verifier", "missing-key", hint
        if self.advantage.turns != "sum" and not self.rollout.environments:
            message = f"advantage.turns is {self.advantage.turns}, and no environment gives rewards of turns"
            yield "advantage.turns", message, "setting-unused", "name one in `rollout.environments`, or write `sum`"
        is_used = self.rollout.steps_per_batch > 1 or self.objective.correction is not None
        if is_used and not self.rollout.samples_all:
            message = (
                "the loss takes ratios of probabilities over all tokens, but answers are sampled from the likely ones"
            )
            hint = "remove `rollout.top_p` and `rollout.top_k`, or take one step per batch without a correction"
            yield "rollout", message, "conflicting-options", hint
        overlong, longest = self.reward.overlong, self.rollout.max_new_tokens
        if overlong is not None and overlong.buffer > longest:
            message = f"the buffer of {overlong.buffer} tokens is longer than an answer of {longest}"
            yield "reward.overlong.buffer", message, "invalid-value", f"write {longest} or less"
        is_needed = self.objective.kl.coefficient > 0
        if is_needed and self.reference is None and not isinstance(self.model, StartingModel):
            message = "a KL penalty needs a reference model, and this run starts from none"
            yield "objective.kl.coefficient", message, "missing-key", "set `reference.from` to a model, or write 0"
        yield from self._check_correction(self.objective.correction)
        if self.reference is not None and not is_needed:
            message = "`reference` has no effect without a KL penalty"
            yield "reference", message, "setting-unused", "set `objective.kl.coefficient`, or remove `reference`"


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillationRecipe(RolloutRecipe):
    """On-policy distillation: the model answers prompts, and a teacher scores each token of the answers."""

    objective: Annotated[DistillationConfig, Doc("The loss.")] = DistillationConfig()
    teacher: Annotated[
        StartingModel | ServedTeacher | None,
        Doc(
            "Model that scores the answers, with the same tokenizer: `from`, or the `url` of a server; null: the starting "
            "model, which needs a prefix."
        ),
    ] = None
    teacher_prefix: Annotated[
        str, Doc("Text in front of the teacher's prompt, after the begin token, such as a rendered system message.")
    ] = ""

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several parts."""
        yield from super(DistillationRecipe, self).check()
        yield from self._check_correction(self.objective.correction)
        if self.teacher is None and not isinstance(self.model, StartingModel):
            yield "teacher", "no teacher, and this run starts from no model", "missing-key", "set `teacher.from`"
        elif self.teacher is None and not self.teacher_prefix:
            message = "the teacher is the starting model and reads the same prompt: there is nothing to learn"
            yield "teacher", message, "missing-key", "set `teacher.from` or `teacher_prefix`"
        if isinstance(self.teacher, ServedTeacher) and self.rollout.temperature != 1.0:
            message = "a server scores at temperature 1, and answers are sampled at another"
            yield "rollout.temperature", message, "unsupported-setting", "write 1, or use `teacher.from`"
        unused = {"drop_constant_groups": not self.rollout.drop_constant_groups}
        unused |= {name: getattr(self.rollout, name) > 1 for name in ("minibatches", "epochs")}
        unused |= {name: bool(getattr(self.rollout, name)) for name in ("refills", "retire", "pools")}
        if not self.rollout.samples_all:
            message = (
                "the reverse KL is estimated from samples of all tokens, but answers are sampled from the likely ones"
            )
            yield "rollout", message, "conflicting-options", "remove `rollout.top_p` and `rollout.top_k`"
        for name in (name for name, is_set in unused.items() if is_set):
            yield f"rollout.{name}", f"`rollout.{name}` is not supported in distillation", "setting-unused", "remove it"
