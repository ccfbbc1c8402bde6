"""Scores of answers by verifiers that may hang, crash or leave processes behind.

    with RewardPool([find_verifier("math")], PoolConfig(deadline_s=10)) as pool:
        scores = pool.score([RewardRequest(verifier="math", answer=answer, ground_truth="7")])

An answer that could not be scored is not a reward of 0: it is counted by the kind of its error, and excluded, tried once
more, or scored 0 if the settings say so.
"""

from __future__ import annotations

import pickle
import struct
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Literal, Self

from windlass.core.errors import PreconditionError, UsageError
from windlass.core.json_text import decode_json, decode_object
from windlass.post.channel import ChildProcess
from windlass.post.rewards.pool_server import WorkerLimits, main
from windlass.post.rewards.protocol import Answer, Score
from windlass.post.rewards.registry import FunctionVerifier

__all__ = ["OnError", "PoolConfig", "RewardPool", "RewardRequest", "ServerProcess"]

OnError = Literal["exclude", "retry", "zero"]

_REQUEST = struct.Struct("!QI")
_START_S = 120.0  # a verifier of the user's may import large packages


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig:
    """Settings of a reward pool.

    Attributes:
        num_workers: answers scored at a time.
        deadline_s: time that a verifier has for an answer.
        on_error: what becomes of an answer that could not be scored: `exclude` reports no value, `retry` scores it once
            more and then reports no value, `zero` reports a reward of 0 with the error.
        queue_size: requests that are submitted and not yet returned.
        memory_bytes: address space of a worker.
    """

    num_workers: int = 2
    deadline_s: float = 10.0
    on_error: OnError = "exclude"
    queue_size: int = 4096
    memory_bytes: int = 4 << 30

    def __post_init__(self) -> None:
        for name in ("num_workers", "deadline_s", "queue_size", "memory_bytes"):
            if not getattr(self, name) > 0:
                raise UsageError(f"`{name}` is {getattr(self, name)}, but must be positive", code="invalid-value")
        if self.on_error not in ("exclude", "retry", "zero"):
            hint = "choose exclude, retry or zero"
            raise UsageError(f"`on_error` is `{self.on_error}`", hint=hint, code="invalid-value")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRequest:
    """An answer to score: by which verifier, and against what."""

    verifier: str
    answer: Answer
    ground_truth: object


class RewardPool:
    """Scores requests, inline or in killable processes, and returns the scores in the order of the requests.

    Not thread-safe. Needs no attention between calls: a server process keeps the deadlines.
    """

    def __init__(self, verifiers: Sequence[FunctionVerifier], config: PoolConfig | None = None) -> None:
        self.config = config or PoolConfig()
        self._verifiers = {verifier.name: verifier for verifier in verifiers}
        self._outside = [verifier for verifier in self._verifiers.values() if verifier.isolation != "inline"]
        self._numbers = {verifier.name: number for number, verifier in enumerate(self._outside)}
        self._order: deque[int] = deque()
        self._scores: dict[int, Score] = {}
        self._pending: set[int] = set()
        self._next = 0
        self._errors: Counter[str] = Counter()
        self._costs: dict[str, float] = {}
        self._num_retries = 0
        self._server: ServerProcess | None = None

    @property
    def errors(self) -> Mapping[str, int]:
        """Number of answers that could not be scored, by kind of error; an answer counts once, after its retry."""
        return dict(self._errors)

    @property
    def costs(self) -> Mapping[str, float]:
        """Amounts that verifiers used since the start, such as tokens of a judge, by name; with failed attempts."""
        return dict(self._costs)

    @property
    def num_retries(self) -> int:
        """Number of answers that were scored a second time."""
        return self._num_retries

    @property
    def facts(self) -> Mapping[str, bool]:
        """Capabilities of this machine: `pid_namespaces` and `process_limit`; starts the server."""
        return self._running_server().facts

    def submit(self, requests: Sequence[RewardRequest]) -> int:
        """Take as many requests as the queue holds and return how many; blocks only for inline verifiers.

        Raises:
            PreconditionError: a verifier cannot be used in the server process.
        """
        taken = requests[: max(0, self.config.queue_size - len(self._order))]
        for request in taken:
            verifier = self._find(request.verifier)
            number, self._next = self._next, self._next + 1
            self._order.append(number)
            if verifier.isolation == "inline":
                self._finish(number, verifier.score(request.answer, request.ground_truth))
            else:
                content = pickle.dumps((request.answer, request.ground_truth))
                self._running_server().channel.send(_REQUEST.pack(number, self._numbers[verifier.name]) + content)
                self._pending.add(number)
        return len(taken)

    def poll(self, timeout_s: float = 0.0) -> list[Score]:
        """Return the scores that are ready, in the order of the requests, at most up to the first that is not.

        Args:
            timeout_s: longest time to wait for the first of them.
        """
        end_s = time.monotonic() + timeout_s
        while self._server is not None and self._pending:
            wait_s = 0.0 if self._is_ready else max(0.0, end_s - time.monotonic())
            if not self._listen(wait_s) and (self._is_ready or time.monotonic() >= end_s):
                break
        ready = []
        while self._is_ready:
            ready.append(self._scores.pop(self._order.popleft()))
        return ready

    def score(self, requests: Sequence[RewardRequest]) -> list[Score]:
        """Return the scores of all requests; blocks, and needs an empty queue.

        Raises:
            PreconditionError: a verifier cannot be used in the server process.
        """
        if self._order:
            raise UsageError(f"{len(self._order)} requests have not been returned", hint="poll first", code="in-use")
        scores: list[Score] = []
        num_taken = 0
        while len(scores) < len(requests):
            num_taken += self.submit(requests[num_taken:])
            scores += self.poll(1.0)
        return scores

    def close(self) -> None:
        """Kill all workers and end the server; open requests are forgotten. Idempotent."""
        if self._server is not None:
            self._server.close()
        self._server = None
        self._order.clear()
        self._scores.clear()
        self._pending.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def _is_ready(self) -> bool:
        return bool(self._order) and self._order[0] in self._scores

    def _find(self, name: str) -> FunctionVerifier:
        if name not in self._verifiers:
            hint = f"verifiers: {', '.join(self._verifiers)}"
            raise UsageError(f"the pool has no verifier `{name}`", hint=hint, code="unknown-name")
        return self._verifiers[name]

    def _running_server(self) -> ServerProcess:
        if self._server is None:
            limits = WorkerLimits(
                num_workers=self.config.num_workers,
                deadline_s=self.config.deadline_s,
                num_retries=int(self.config.on_error == "retry"),
                memory_bytes=self.config.memory_bytes,
            )
            settings = {"verifiers": [(each.name, each.settings) for each in self._outside], "limits": asdict(limits)}
            self._server = ServerProcess(main.__module__, settings, what="the reward pool")
        return self._server

    def _listen(self, timeout_s: float) -> bool:
        """Take replies of the server; return whether there were any. If it ended, what it held counts as an error."""
        assert self._server is not None
        frames = self._server.channel.wait(timeout_s)
        for frame in frames:
            number, value, error, kind, seconds, num_repeats, cost = decode_json(frame)
            self._num_retries += num_repeats
            self._pending.discard(number)
            self._finish(number, Score(value=value, error=error, kind=kind, seconds=seconds, cost=cost))
        if self._server.channel.is_closed:
            how = self._server.close()
            self._server = None
            for number in sorted(self._pending):
                self._finish(number, Score(value=None, error=f"the pool's server ended: {how}", kind="pool"))
            self._pending.clear()
            return True
        return bool(frames)

    def _finish(self, number: int, score: Score) -> None:
        for name, amount in score.cost.items():
            self._costs[name] = self._costs.get(name, 0.0) + amount
        if score.value is None:
            self._errors[score.kind] += 1
            if self.config.on_error == "zero":
                score = replace(score, value=0.0)
        self._scores[number] = score


class ServerProcess:
    """A running server of workers, and the stream to it.

    Args:
        module: module of its `main`.
        what: what it serves, for messages.

    Raises:
        PreconditionError: it did not start.
    """

    def __init__(
        self, module: str, settings: Mapping[str, object], *, what: str, num_bytes: int = (1 << 32) - 1
    ) -> None:
        self._what = what
        self._process = ChildProcess(module, settings, max_frame_bytes=num_bytes)
        self.channel, self.close = self._process.channel, self._process.close
        self.facts: Mapping[str, bool] = self._check_start()

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._process.pid

    def _check_start(self) -> dict[str, bool]:
        end_s = time.monotonic() + _START_S
        frames: list[bytes] = []
        while not frames and not self.channel.is_closed and time.monotonic() < end_s:
            frames = self.channel.wait(end_s - time.monotonic())
        reply = decode_object(frames[0]) if frames else {}
        if "pid_namespaces" in reply:
            return dict(reply)
        ended = self.close()
        message = reply.get("error") or f"it did not start within {_START_S:g} s ({ended})"
        raise PreconditionError(
            f"cannot start {self._what}: {message}",
            hint=reply.get("hint", "what it serves is imported by name in a process of its own"),
            code=reply.get("code", "user-code-failed"),
        )
