"""Protocol of a rollout engine: token ids in; token ids, log-probabilities and versions out.

An engine is driven by one thread. It copies the weights that it loads and shares nothing with the learner.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol, TypeAlias

from windlass.core.errors import PreconditionError

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.post.rollout.types import Sample, SampleId, SampleRequest, ScoreRequest

__all__ = ["EngineError", "EngineFacts", "Lendable", "LendingEngine", "OpenWork", "RefillableEngine", "RolloutEngine"]

Lendable: TypeAlias = Literal["cache", "weights"]
"""Memory that an engine frees for others: `cache` is its slots; `weights` is its slots and its copy of the weights."""

OpenWork: TypeAlias = Literal["recompute", "keep"]
"""Treatment of samples in progress by a load: compute their cache again with the new weights, or keep it."""


class EngineError(PreconditionError):
    """An engine died or cannot do what was requested; it must not be used again unless the message says so."""

    default_code: ClassVar[str] = "rollout-engine-failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """Capabilities of an engine; constant during its life.

    Attributes:
        num_slots: samples that are generated at the same time.
        max_length: maximum number of tokens of a prompt and its continuation.
        max_open: samples taken at the same time, waiting ones included.
        vocab_size: number of token ids.
        has_stop_texts: stop texts are possible, because the engine knows the text of tokens.
        has_raw_logp: samples carry log-probabilities under the model's own distribution.
        is_deterministic: a sample depends on its work and the weights alone, to the last bit; not on other samples,
            the order of submission, or cancellations.
        has_in_flight_update: `load` is possible while samples are in progress.
        has_weight_update: `load` is possible; without it the engine has the weights that it began with.
    """

    name: str
    num_slots: int
    max_length: int
    max_open: int
    vocab_size: int
    has_stop_texts: bool
    has_raw_logp: bool
    is_deterministic: bool
    has_in_flight_update: bool
    has_weight_update: bool = True


class RolloutEngine(Protocol):
    """Continues prompts with the weights of one version at a time."""

    @property
    def facts(self) -> EngineFacts:
        """Return what this engine can do."""

    def version(self) -> int:
        """Return the version of the loaded weights."""

    def submit(self, work: Sequence[SampleRequest]) -> int:
        """Take work from the front of the list and return how many; the rest can be submitted later.

        Never blocks and computes nothing. An engine takes at least one when it has no open work.

        Raises:
            UsageError: a prompt is empty, has tokens outside the vocabulary or is too long for its limit of new
                tokens, or a sample with this id is open. Nothing is taken then.
        """

    def poll(self, timeout_s: float) -> Sequence[Sample]:
        """Return samples that finished or were cancelled, each once, in any order.

        Waits up to `timeout_s` seconds for the first one; an embedded engine computes during that time. Returns at
        once if no open work can be continued. 0: do what can be done without waiting, for an embedded engine one step.

        Raises:
            EngineError: the engine died. Its open work is lost and can be submitted to another engine.
        """

    def cancel(self, ids: Collection[SampleId]) -> None:
        """End open samples; `poll` returns what they have so far. Ids without open work are ignored."""

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[tuple[float, ...]]:
        """Return the log-probabilities of each request's tokens from `start` on. Blocks until they are computed."""

    def load(self, weights: Mapping[str, Tensor], version: int, *, open_work: OpenWork = "recompute") -> None:
        """Copy weights, all or none, and give them a version. Blocks.

        Args:
            weights: parameters by name.
            open_work: treatment of samples in progress; tokens that they have so far keep their version.

        Raises:
            EngineError: a name or shape differs from the model's. The previous weights stay loaded and usable.
        """

    def close(self) -> None:
        """Free the engine's memory and drop open work; idempotent."""


class RefillableEngine(RolloutEngine, Protocol):
    """Engine whose weights can be overwritten where they are, without a second copy."""

    def refill(
        self, fill: Callable[[Mapping[str, Tensor]], None], version: int, *, open_work: OpenWork = "recompute"
    ) -> None:
        """Let `fill` overwrite the engine's own weights, and give them a version. Blocks.

        Raises:
            Exception: what `fill` raised; the engine is unusable then, because its weights may be of two versions.
        """


class LendingEngine(RolloutEngine, Protocol):
    """Engine that frees memory while others need it, such as a learner on the same GPU."""

    def lend(self, what: Lendable) -> None:
        """Free memory until `take_back`; the engine refuses to compute meanwhile. Idempotent.

        Raises:
            UsageError: samples are in progress.
        """

    def take_back(self) -> None:
        """Allocate the memory again; weights that were lent must be loaded before anything is computed. Idempotent."""
