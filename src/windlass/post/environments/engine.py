"""Engine that lets an environment answer between the turns of another engine.

    engine = EnvironmentEngine(EmbeddedEngine(...), EpisodePool({"python": {}}), encoder, {"python": 8})

A sample whose request has a task is generated turn by turn: the wrapped engine writes a turn, the environment answers it in
a process of its own, and the chat template's and the environment's tokens are appended. Such tokens are never trained and
have log-probability 0. The wrapped engine reads the whole sequence again for each turn.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from windlass.config.encode import to_data
from windlass.config.loading import from_data
from windlass.post.data.chat import ChatEncoder
from windlass.post.data.templates import ChatTemplate, TemplateError
from windlass.post.environments.process import EpisodePool
from windlass.post.environments.trajectory import Trajectory
from windlass.post.rollout.row import cancelled_sample
from windlass.post.rollout.streams import stream_key
from windlass.post.rollout.waiting import check_work
from windlass.train.data.config import TokenizerConfig
from windlass.train.data.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.post.control.config import EnvironmentConfig
    from windlass.post.environments.protocol import Turn
    from windlass.post.rollout.engine import EngineFacts, Lendable, LendingEngine, OpenWork, RolloutEngine
    from windlass.post.rollout.types import Finish, Sample, SampleId, SampleRequest, ScoreRequest

__all__ = ["EnvironmentEngine", "EnvironmentSpec", "with_environments"]

_LOOK_S = 0.02
"""Time of the wrapped engine between two looks at environments."""


@dataclass(slots=True, kw_only=True)
class _Open:
    """An open episode; `finish` is how it ends, once only its environment's last reward is awaited."""

    trajectory: Trajectory
    number: int
    max_turns: int
    is_complete: bool = True
    finish: Finish | None = None
    asked_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSpec:
    """Environments of a run, JSON-safe.

    Attributes:
        environments: settings by name.
        max_turns: most turns of the policy, by name.
        deadline_s: time that an environment has for a turn.
        tokenizer: a TokenizerConfig, as `to_data` writes it.
        template: name, text and special tokens of the chat template.
    """

    environments: Mapping[str, Mapping[str, Any]]
    max_turns: Mapping[str, int]
    deadline_s: float
    tokenizer: Mapping[str, Any]
    template: Mapping[str, Any]

    @classmethod
    def of(cls, configs: Sequence[EnvironmentConfig], deadline_s: float, encoder: ChatEncoder) -> EnvironmentSpec:
        """Return what settings describe."""
        template = encoder.template
        return cls(
            environments={each.name: dict(each.settings) for each in configs},
            max_turns={each.name: each.max_turns for each in configs},
            deadline_s=deadline_s,
            tokenizer=to_data(encoder.tokenizer_config, keep_defaults=True),
            template={"name": template.name, "text": template.text, "tokens": dict(template.tokens)},
        )

    def encoder(self) -> ChatEncoder:
        """Return what renders conversations, in another process too."""
        config = from_data(TokenizerConfig, self.tokenizer)
        return ChatEncoder(ChatTemplate.compile(**self.template), load_tokenizer(config), config)


def with_environments(engine: RolloutEngine, spec: EnvironmentSpec) -> EnvironmentEngine:
    """Return an engine whose samples environments answer; starts no process yet."""
    pool = EpisodePool(spec.environments, deadline_s=spec.deadline_s, num_workers=max(8, engine.facts.num_slots))
    return EnvironmentEngine(engine, pool, spec.encoder(), spec.max_turns)


class EnvironmentEngine:
    """Engine with environments; implements `RolloutEngine`.

    Args:
        engine: generates turns; closed by `close`.
        pool: environments; closed by `close`.
        encoder: renders conversations, as the prompts were rendered.
        max_turns: most turns of the policy, by environment.
    """

    def __init__(
        self, engine: RolloutEngine, pool: EpisodePool, encoder: ChatEncoder, max_turns: Mapping[str, int]
    ) -> None:
        self._engine, self._pool, self._encoder, self._max_turns = engine, pool, encoder, dict(max_turns)
        self._episodes: dict[SampleId, _Open] = {}
        self._numbers: dict[int, SampleId] = {}
        self._ready: dict[SampleId, SampleRequest] = {}  # to be submitted to the wrapped engine
        self._running: set[SampleId] = set()  # submitted to it
        self._done: list[Sample] = []

    @property
    def facts(self) -> EngineFacts:
        """Return what the wrapped engine can do."""
        return self._engine.facts

    def version(self) -> int:
        """Return the version of the loaded weights."""
        return self._engine.version()

    def submit(self, work: Sequence[SampleRequest]) -> int:
        """Take work from the front of the list and return how many; see `RolloutEngine.submit`."""
        facts = self.facts
        open_ids = {*self._episodes, *self._ready, *self._running}
        check_work(
            work,
            vocab_size=facts.vocab_size,
            max_length=facts.max_length,
            open_ids=open_ids,
            can_decode=facts.has_stop_texts,
        )
        taken = work[: max(0, facts.max_open - len(open_ids))]
        for request in taken:
            if request.task is None:
                self._ready[request.id] = request
            else:
                self._begin(request)
        return len(taken)

    def poll(self, timeout_s: float) -> Sequence[Sample]:
        """Return finished samples; waits up to `timeout_s` for the first one, see `RolloutEngine.poll`."""
        end_s = time.monotonic() + timeout_s
        can_continue = True
        while can_continue and not self._done:
            can_continue = self._look(max(0.0, min(_LOOK_S, end_s - time.monotonic()))) or self._pool.num_asked > 0
            if time.monotonic() >= end_s:
                break
        done, self._done = self._done, []
        return done

    def cancel(self, ids: Collection[SampleId]) -> None:
        """End open samples; `poll` returns what they have so far."""
        for sample in dict.fromkeys(ids):
            request = self._ready.pop(sample, None)
            if sample in self._running:
                self._engine.cancel([sample])  # its `poll` returns it
            elif sample in self._episodes:
                self._finish(sample, "cancelled")
            elif request is not None:
                self._done.append(cancelled_sample(request, 0.0))

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[tuple[float, ...]]:
        """Return the log-probabilities of each request's tokens from `start` on."""
        return self._engine.score(requests)

    def load(self, weights: Mapping[str, Tensor], version: int, *, open_work: OpenWork = "recompute") -> None:
        """Copy weights, all or none, and give them a version; see `RolloutEngine.load`."""
        self._engine.load(weights, version, open_work=open_work)

    def lend(self, what: Lendable) -> None:
        """Free memory of the wrapped engine; see `LendingEngine.lend`."""
        cast("LendingEngine", self._engine).lend(what)

    def take_back(self) -> None:
        """Allocate what was lent; see `LendingEngine.take_back`."""
        cast("LendingEngine", self._engine).take_back()

    def close(self) -> None:
        """Kill the environments, close the wrapped engine and drop open work; idempotent."""
        self.release()
        self._engine.close()

    def release(self) -> None:
        """Kill the environments and drop open work; the next sample starts them again. Idempotent."""
        self._pool.close()
        if self._running:
            self._engine.cancel(list(self._running))
            self._engine.poll(0.0)  # what was generated is dropped
        for each in (self._episodes, self._numbers, self._ready, self._running, self._done):
            each.clear()

    def _begin(self, request: SampleRequest) -> None:
        assert request.task is not None
        seed = stream_key(request.sampling.seed, request.id) % 2**63
        number = self._pool.begin(request.task.environment, request.task.row, seed)
        self._numbers[number] = request.id
        self._episodes[request.id] = _Open(
            trajectory=Trajectory(request, self._encoder),
            number=number,
            max_turns=self._max_turns[request.task.environment],
            asked_s=time.monotonic(),
        )

    def _look(self, wait_s: float) -> bool:
        """Take what environments and the engine have, waiting for one of them; returns whether more can be expected."""
        began_s = time.monotonic()
        turns = self._pool.poll(0.0 if self._ready or self._running else wait_s)
        for number, turn in turns:
            self._take_turn(self._numbers[number], turn)
        if self._ready:
            waiting = list(self._ready)
            for each in waiting[: self._engine.submit(list(self._ready.values()))]:
                del self._ready[each]
                self._running.add(each)
        samples = self._engine.poll(wait_s) if self._running else ()
        for sample in samples:
            self._take_sample(sample)
        return bool(turns or samples) or (bool(self._running) and time.monotonic() - began_s >= wait_s)

    def _take_sample(self, sample: Sample) -> None:
        """Take a turn of the policy, and hand it to the environment."""
        self._running.discard(sample.id)
        found = self._episodes.get(sample.id)
        if found is None:
            self._done.append(sample)
            return
        try:
            reply = found.trajectory.add_policy(sample)
        except TemplateError as error:
            self._finish(sample.id, "stop", str(error))
            return
        if sample.finish == "cancelled":
            self._finish(sample.id, "cancelled")
            return
        found.is_complete, found.asked_s = reply.is_complete, time.monotonic()
        self._pool.step(found.number, reply)

    def _take_turn(self, sample: SampleId, turn: Turn) -> None:
        """Take a turn of an environment: the sample goes on, or it ends."""
        found = self._episodes[sample]
        trajectory = found.trajectory
        trajectory.add_seconds({"environment": time.monotonic() - found.asked_s})
        trajectory.reward(turn.reward)
        if turn.error or (turn.is_done and not trajectory.num_turns):
            self._finish(sample, "stop", turn.error or "the environment was done before the first turn")
        elif found.finish is not None:
            self._finish(sample, found.finish)
        elif turn.is_done:
            self._finish(sample, "stop" if found.is_complete else "length")
        elif not found.is_complete or trajectory.num_turns >= found.max_turns:
            self._ask_score(found, "stop" if found.is_complete else "length")
        else:
            self._go_on(sample, found, turn)

    def _go_on(self, sample: SampleId, found: _Open, turn: Turn) -> None:
        trajectory = found.trajectory
        try:
            trajectory.add_messages(turn.messages)
        except TemplateError as error:
            self._finish(sample, "stop", str(error))
            return
        if trajectory.room >= 1:
            self._ready[sample] = trajectory.next_request()
        elif trajectory.num_turns:
            self._ask_score(found, "length")
        else:
            self._finish(sample, "length", "the environment's first messages leave no room for an answer")

    def _ask_score(self, found: _Open, finish: Finish) -> None:
        found.finish, found.asked_s = finish, time.monotonic()
        self._pool.score(found.number)

    def _finish(self, sample: SampleId, finish: Finish, error: str = "") -> None:
        found = self._episodes.pop(sample)
        self._pool.end(found.number)
        del self._numbers[found.number]
        self._done.append(found.trajectory.sample(finish, version=self._engine.version(), error=error))
