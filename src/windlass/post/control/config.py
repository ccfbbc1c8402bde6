"""Settings of rollouts and rewards; importable without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

from windlass.config.annotations import Diagnostic, Doc, DurationText, JsonValue, OneOrMany, Range
from windlass.core.errors import UsageError
from windlass.post.data.config import MixSource
from windlass.post.http_requests import check_url
from windlass.train.duration import Duration

__all__ = [
    "AsyncConfig",
    "EngineConfig",
    "EnvironmentConfig",
    "EvaluationConfig",
    "OverlongConfig",
    "PoolWeights",
    "PoolsConfig",
    "RetireConfig",
    "RewardsConfig",
    "RolloutConfig",
    "VerifierConfig",
    "check_address",
    "check_environments",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierConfig:
    """A verifier and its share in the reward."""

    name: Annotated[
        str,
        Doc(
            "`gsm8k`, `math`, `code`, `ifeval`, `exact`, `f1`, `format`, `length`, `judge`, `model`, an installed one, or `module:function`."
        ),
    ]
    settings: Annotated[dict[str, JsonValue], Doc("Keyword arguments of its function.")] = field(default_factory=dict)
    weight: Annotated[float, Range(min=-1e6, max=1e6), Doc("Factor of its value in the reward.")] = 1.0

    @classmethod
    def from_shorthand(cls, value: str) -> VerifierConfig:
        """Read a name alone."""
        return cls(name=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongConfig:
    """Penalty of long answers: it rises over the last tokens before the limit. Source: Yu et al. 2025, DAPO, eq. 13."""

    buffer: Annotated[int, Range(min=1), Doc("Tokens before `rollout.max_new_tokens` over which the penalty rises.")]
    penalty: Annotated[float, Range(above=0), Doc("Subtracted from the reward at the limit.")] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardsConfig:
    """Scoring of answers: the weighted sum of all verifiers, shaped by length."""

    verifiers: Annotated[
        tuple[VerifierConfig, ...],
        Doc("Verifiers, each by name or as {name, weight, settings}. None: the rewards of environments alone."),
    ]
    deadline: Annotated[
        float, DurationText(), Range(above=0), Doc("Time that a verifier in a process of its own has for an answer.")
    ] = 10.0
    on_error: Annotated[
        Literal["exclude", "retry", "zero"],
        Doc("Answers that cannot be scored: left out of training, scored once more first, or rewarded with 0."),
    ] = "exclude"
    num_workers: Annotated[int, Range(min=1), Doc("Answers that are scored at the same time.")] = 2
    sandbox: Annotated[
        Literal["strict", "weak"],
        Doc(
            "Sandbox of `code`. strict: refuse to start on a machine that cannot give all of it; weak: use what there is. "
            "`--plan` lists what is missing."
        ),
    ] = "strict"
    normalise: Annotated[
        bool,
        Doc(
            "Normalise each verifier's values in their group before they are added, so that a small spread counts as "
            "much as a large one. Source: Liu et al. 2026, GDPO; with `advantage: {baseline: none, scale: whiten}`."
        ),
    ] = False
    truncated: Annotated[
        float | None,
        Doc(
            "Reward of answers that reached the limit of tokens, whatever verifiers say (open-instruct: non_stop_penalty)."
        ),
    ] = None
    overlong: Annotated[OverlongConfig | None, Doc("Penalty of answers that come near the limit of tokens.")] = None
    length_weight: Annotated[
        float,
        Range(min=0),
        Doc(
            "Factor of a reward for being short: 0.5 for the shortest answer of the group to -0.5 for the longest; "
            "0 at most if the verifiers' sum is not positive. Source: Kimi Team 2025, Kimi k1.5, section 2.3.3."
        ),
    ] = 0.0
    shuffle: Annotated[
        bool,
        Doc("Permute the rewards of each group before learning: a control, as they no longer depend on the answer."),
    ] = False

    @property
    def is_shaped(self) -> bool:
        """Return whether the reward is more than the sum of verifiers."""
        return self.overlong is not None or self.truncated is not None or bool(self.length_weight)

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges cannot express."""
        names = [verifier.name for verifier in self.verifiers]
        if self.sandbox == "weak" and "code" not in names:
            message = "`sandbox: weak` has no effect: no verifier runs in a sandbox"
            yield "sandbox", message, "setting-unused", "remove it"
        for place, name in enumerate(names):
            if name in names[:place]:
                yield f"verifiers.{place}", f"`{name}` is listed twice", "invalid-value", "add up their weights"
            if name == "code" and "weak" in self.verifiers[place].settings:
                message = "`weak` of `code` is set for all verifiers together"
                yield f"verifiers.{place}.settings.weak", message, "invalid-value", "write `reward.sandbox: weak`"
        if self.normalise and self.truncated is not None:
            message = "`truncated` replaces a reward, and `normalise` has no reward to replace"
            yield "truncated", message, "conflicting-options", "use `overlong`, or remove one of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncConfig:
    """Generation beside learning, within a bound of staleness."""

    bound: Annotated[
        int,
        Range(min=0),
        Doc(
            "Most optimiser steps between the weights that any trained token was sampled with, or read a cache entry "
            "of, and the step that learns from it. 0: each batch is sampled by the weights that learn from it."
        ),
    ] = 0
    ahead: Annotated[
        int, Range(min=0), Doc("Batches that are generated ahead of the one that the learner needs; at most the bound.")
    ] = 1
    workers: Annotated[int, Range(min=1), Doc("Processes that generate; used if the bound is above 0.")] = 1
    threads: Annotated[int, Range(min=1), Doc("Threads of each of these processes.")] = 1
    place: Annotated[
        Literal["process", "ray", "join"],
        Doc(
            "process: on the machine of the first learner; ray: actors on the nodes of the Ray cluster of RAY_ADDRESS, "
            "such as that of a task with `cluster: ray`; join: any number of `windlass train worker`, started elsewhere, "
            "which outlive a learner and join the next one."
        ),
    ] = "process"
    gpus: Annotated[
        float,
        Range(min=0),
        Doc("GPUs that Ray reserves for each actor; a fraction shares one. Processes use the machine's GPUs in turn."),
    ] = 0.0
    in_flight: Annotated[
        Literal["recompute", "keep", "finish"],
        Doc(
            "New weights for answers in progress. recompute: at once, and the cache is computed again; keep: at once, with "
            "the cache of older weights; finish: each worker finishes its answers first. The bound holds for all three."
        ),
    ] = "recompute"
    probe_factor: Annotated[
        float,
        Range(above=0),
        Doc(
            "A worker refuses weights with which its log-probabilities of a probe differ from the learner's by more than "
            "this multiple of the learner's own difference between two shapes of a batch."
        ),
    ] = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentConfig:
    """An environment that answers the model between its turns."""

    name: Annotated[str, Doc("`python`, `verifiers`, an installed one, or `module:function`.")]
    settings: Annotated[dict[str, JsonValue], Doc("Keyword arguments of its class or function.")] = field(
        default_factory=dict
    )
    fraction: Annotated[
        float,
        Range(min=0),
        Doc("Share of the prompts whose row has no column `environment`, relative to that of the other environments."),
    ] = 1.0
    max_turns: Annotated[int, Range(min=1), Doc("Most turns of the model in an episode.")] = 8

    @classmethod
    def from_shorthand(cls, value: str) -> EnvironmentConfig:
        """Read a name alone."""
        return cls(name=value)


def check_environments(environments: Sequence[EnvironmentConfig]) -> Iterator[Diagnostic]:
    """Check rules that span environments."""
    names = [each.name for each in environments]
    for place, name in enumerate(names):
        if name in names[:place]:
            yield f"environments.{place}", f"`{name}` is listed twice", "invalid-value", "name it once"
    if names and not any(each.fraction for each in environments):
        message = "every environment has the fraction 0"
        yield "environments", message, "invalid-value", "give one of them a `fraction` above 0"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireConfig:
    """When a prompt is solved and not used again (open-instruct: no_resampling_pass_rate)."""

    rate: Annotated[float, Range(above=0, max=1), Doc("Share of a group's answers that solve the prompt.")] = 1.0
    visits: Annotated[int, Range(min=1, max=255), Doc("Visits in a row in which this share was reached.")] = 1
    reward: Annotated[float, Doc("Least sum of verifiers of an answer that solves the prompt.")] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolWeights:
    """Relative frequency with which the prompts of each pool are used."""

    easy: Annotated[float, Range(min=0), Doc("Weight of an easy prompt; 0: it is not used again.")] = 0.25
    normal: Annotated[float, Range(above=0), Doc("Weight of a prompt that is neither, or not visited yet.")] = 1.0
    hard: Annotated[float, Range(min=0), Doc("Weight of a hard prompt.")] = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolsConfig:
    """Pools of prompts by the share of answers that solved them at their last visit (prime-rl: difficulty pools)."""

    easy: Annotated[float, Range(above=0, max=1), Doc("Least share of an easy prompt.")] = 1.0
    hard: Annotated[float, Range(min=0), Doc("Largest share of a hard prompt; below `easy`.")] = 0.0
    weights: Annotated[
        PoolWeights,
        Doc("A prompt is used in as many of its turns as its pool's weight is of the largest; others are passed over."),
    ] = PoolWeights()
    reward: Annotated[float, Doc("Least sum of verifiers of an answer that solves the prompt.")] = 1.0

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span both thresholds."""
        if self.hard >= self.easy:
            message = f"a prompt with a share of {self.easy} would be both easy and hard"
            yield "hard", message, "invalid-value", f"write less than {self.easy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Engine that generates answers."""

    name: Annotated[
        str,
        Doc(
            "`embedded`; `transformers`; `http`, a server such as `vllm serve`; `vllm`, in processes of its own; or "
            "`module:function`, which returns an engine."
        ),
    ] = "embedded"
    settings: Annotated[
        dict[str, JsonValue],
        Doc(
            "Keyword arguments of the engine, such as `{url: http://node7:8000}` of `http`; keys are named, not written here."
        ),
    ] = field(default_factory=dict)

    @classmethod
    def from_shorthand(cls, value: str) -> EngineConfig:
        """Read a name alone."""
        return cls(name=value)

    def check(self) -> Iterator[Diagnostic]:
        """Check the name, and the address of a server."""
        if self.name not in _ENGINES and ":" not in self.name:
            hint = f"engines: {', '.join(_ENGINES)}; or `module:function`"
            yield "name", f"unknown engine `{self.name}`", "unknown-name", hint
        if self.name == "http":
            yield from check_address(self.settings.get("url"), "settings.url")

    @property
    def has_frozen_weights(self) -> bool:
        """Return whether this is a server whose weights stay what they are."""
        return self.name == "http" and self.settings.get("weights", "frozen") == "frozen"


_ENGINES = ("embedded", "transformers", "http", "vllm")


def check_address(url: object, name: str) -> Iterator[Diagnostic]:
    """Check the address of a server."""
    if not isinstance(url, str) or not url:
        yield name, "no address of a server", "missing-key", "write `url: http://HOST:PORT`"
        return
    try:
        check_url(url)
    except UsageError as error:
        yield name, error.message, error.code, error.hint


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutConfig:
    """Generation of answers."""

    engine: Annotated[EngineConfig, Doc("What generates answers, by name or as {name, settings}.")] = EngineConfig()

    group_size: Annotated[int, Range(min=1), Doc("Answers to each prompt.")] = 8
    max_new_tokens: Annotated[int, Range(min=1), Doc("Most tokens of an answer, the end token included.")] = 256
    temperature: Annotated[float, Range(above=0), Doc("Divides logits, at sampling and in the loss.")] = 1.0
    top_k: Annotated[int | None, Range(min=1), Doc("Sample from the k most likely tokens; null: from all.")] = None
    top_p: Annotated[
        float | None,
        Range(above=0, max=1),
        Doc("Sample from the most likely tokens of this probability; null: from all."),
    ] = None
    stop_texts: Annotated[tuple[str, ...], Doc("Texts that end an answer, besides the end token.")] = ()
    num_slots: Annotated[int, Range(min=2), Doc("Answers that are generated at the same time.")] = 64
    colocate: Annotated[
        Literal["none", "cache", "weights"],
        Doc(
            "Memory that the engine frees while the model learns, and allocates again for the next batch: none; cache: its "
            "slots; weights: its slots and its copy of the weights. With `async.bound: 0`, where both share a device."
        ),
    ] = "none"
    environments: Annotated[
        tuple[EnvironmentConfig, ...],
        Doc(
            "Environments that answer the model between its turns, each by name or as {name, settings, fraction, "
            "max_turns}. A row's column `environment` names one; other rows are divided by `fraction`."
        ),
    ] = ()
    turn_deadline: Annotated[
        float, DurationText(), Range(above=0), Doc("Time that an environment has for a turn before it is killed.")
    ] = 60.0
    mask_truncated: Annotated[
        bool, Doc("Do not train on answers that reached the limit of tokens; advantages still count them.")
    ] = False
    drop_constant_groups: Annotated[
        bool, Doc("Do not train on groups whose rewards are all equal; such groups are counted in the metrics.")
    ] = True
    share_prompts: Annotated[
        bool,
        Doc("Compute a prompt once for answers to it that are learned together, where that is less work."),
    ] = True
    refills: Annotated[
        int,
        Range(min=0),
        Doc(
            "Most rounds in which further prompts take the place of groups whose rewards are all equal, until the batch "
            "is full. Source: Yu et al. 2025, DAPO, section 3.2 (verl: max_num_gen_batches)."
        ),
    ] = 0
    retire: Annotated[
        RetireConfig | None, Doc("Do not use a prompt again once it is solved; the run ends when all are. Null: never.")
    ] = None
    pools: Annotated[
        PoolsConfig | None, Doc("Use easy and hard prompts less often than others. Null: all equally often.")
    ] = None
    minibatches: Annotated[
        int,
        Range(min=1),
        Doc("Optimiser steps over a batch: its groups are divided evenly (verl: batch size / ppo_mini_batch_size)."),
    ] = 1
    epochs: Annotated[
        int, Range(min=1), Doc("How often a batch is learned (TRL: num_iterations; verl: ppo_epochs).")
    ] = 1
    only: Annotated[
        bool, Doc("Generate, score and store samples without learning; the run ends with its starting weights.")
    ] = False
    replay: Annotated[
        str,
        Doc(
            "Another run's folder of checkpoints (on the command line also a run): learn from its stored samples instead of generating."
        ),
    ] = ""
    keep_samples: Annotated[
        int | None,
        Range(min=1),
        Doc("Number of newest steps whose samples are kept; those since the oldest checkpoint are always; null: all."),
    ] = None

    @property
    def samples_all(self) -> bool:
        """Return whether answers are samples of the model's whole distribution."""
        return self.top_k is None and self.top_p in {None, 1.0}

    @property
    def steps_per_batch(self) -> int:
        """Optimiser steps on a batch."""
        return self.minibatches * self.epochs

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that ranges cannot express."""
        if self.refills and not self.drop_constant_groups:
            message = "`refills` replaces groups that are dropped, and `drop_constant_groups` is false"
            yield "refills", message, "setting-unused", "remove one of them"
        for name in (name for name in ("refills", "retire", "pools") if self.replay and getattr(self, name)):
            yield name, f"`{name}` chooses prompts, and `replay` has them chosen", "setting-unused", f"remove `{name}`"
        if self.colocate != "none" and (self.only or self.replay):
            name = "only" if self.only else "replay"
            message = f"`colocate` has no effect with `{name}`: nothing is learned between batches that are generated"
            yield "colocate", message, "setting-unused", "remove it"
        if self.colocate != "none" and self.engine.name != "embedded":
            message = f"`colocate` frees memory of the embedded engine; `engine` is `{self.engine.name}`"
            yield "colocate", message, "unsupported-setting", "remove it, or write `engine: embedded`"
        yield from check_environments(self.environments)
        if self.only and self.replay:
            message = "both `only` and `replay` are set: nothing is generated and nothing learned"
            yield "only", message, "conflicting-options", "remove one of them"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Answers to held-out prompts during training, scored by verifiers."""

    engine: Annotated[
        EngineConfig,
        Doc("What generates answers; `http` in `windlass ckpt evaluate` alone, with a server of the checkpoint."),
    ] = EngineConfig()

    mix: Annotated[tuple[MixSource, ...], Doc("Sources of held-out prompts; `count` of a source limits them.")]
    transforms: Annotated[tuple[str, ...], Doc("Transforms of these rows, by name or `module:function`.")] = ()
    reward: Annotated[
        RewardsConfig | None, Doc("How answers are scored; null: by the verifiers of training (grpo).")
    ] = None
    every: Annotated[Duration | None, Doc("Length between evaluations; null: at the end only.")] = None
    at_start: Annotated[bool, Doc("Evaluate before the first step too.")] = False
    samples: Annotated[int, Range(min=1), Doc("Answers to each prompt.")] = 1
    pass_at: Annotated[
        tuple[int, ...],
        OneOrMany(),
        Doc("Values of k; `eval/pass@k` is the share of prompts that one of k answers passes."),
    ] = (1,)
    pass_from: Annotated[float, Doc("Least reward of an answer that passes.")] = 1.0
    temperature: Annotated[float, Range(min=0), Doc("Divides logits; 0: the most likely tokens.")] = 0.0
    max_new_tokens: Annotated[int, Range(min=1), Doc("Most tokens of an answer, the end token included.")] = 256
    stop_texts: Annotated[tuple[str, ...], Doc("Texts that end an answer, besides the end token.")] = ()
    num_slots: Annotated[int, Range(min=2), Doc("Answers that are generated at the same time.")] = 64
    environments: Annotated[
        tuple[EnvironmentConfig, ...] | None,
        Doc("Environments that answer the model between its turns; null: those of training."),
    ] = None
    turn_deadline: Annotated[
        float, DurationText(), Range(above=0), Doc("Time that an environment has for a turn before it is killed.")
    ] = 60.0

    def check(self) -> Iterator[Diagnostic]:
        """Check rules that span several fields."""
        if self.engine.name == "vllm":
            message = "`vllm` generates in worker processes, and an evaluation has none"
            yield "engine", message, "unsupported-setting", "use `embedded` or `transformers`, or serve the checkpoint"
        yield from check_environments(self.environments or ())
        if not self.mix:
            yield "mix", "no held-out prompts", "missing-key", "add `mix: [{source: FILE}]`"
        if self.reward is not None and (self.reward.is_shaped or self.reward.normalise or self.reward.shuffle):
            message = "an evaluation reports what verifiers find: rewards are not shaped, normalised or shuffled"
            yield "reward", message, "setting-unused", "keep only `verifiers`, `deadline`, `on_error` and `num_workers`"
        for place, k in enumerate(self.pass_at):
            if not 1 <= k <= self.samples:
                message = f"pass@{k} needs {k} answers to each prompt; `samples` is {self.samples}"
                yield f"pass_at.{place}", message, "invalid-value", "raise `samples`, or use a k from 1 to `samples`"
        if self.samples > 1 and self.temperature == 0:
            message = f"with temperature 0 all {self.samples} answers to a prompt are equal"
            yield "temperature", message, "setting-unused", "set `temperature` above 0, or `samples: 1`"
