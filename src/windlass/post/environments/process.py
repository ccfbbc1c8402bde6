"""Episodes of environments in processes of their own, which may hang, crash or send anything.

    pool = EpisodePool({"python": {}}, deadline_s=30)
    number = pool.begin("python", row, seed=0)
    pool.poll(1.0)                        # [(number, Turn(...))]
    pool.step(number, Reply(text="..."))

A server process creates each environment once and forks a worker for each episode; it is the server of the reward pool,
with workers that are asked more than once. What an episode cannot give is a turn with an error, which is not a reward of 0.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from windlass.core.errors import WindlassError
from windlass.core.json_text import decode_json, decode_object
from windlass.post.channel import FrameStream, read_settings
from windlass.post.environments.protocol import Environment, Reply, Turn, find_environment
from windlass.post.rewards.pool import ServerProcess
from windlass.post.rewards.pool_server import WorkerLimits, WorkerServer, WorkRequest, begin_worker
from windlass.post.rewards.protocol import Score
from windlass.post.workers.messages import pack, unpack

__all__ = ["EpisodePool", "main"]

_MAX_TURN_BYTES = 1 << 20
_MAX_ERROR_LENGTH = 500
_IDLE_S = 3600.0
_ROLES = frozenset({"system", "developer", "user", "tool", "function", "environment"})


class EpisodePool:
    """Client of the server; not thread-safe.

    Args:
        environments: settings of each environment by name.
        deadline_s: time that an environment has for a turn.
        num_workers: episodes that are open at a time; further ones wait.
        memory_bytes: address space of a worker.
    """

    def __init__(
        self,
        environments: Mapping[str, Mapping[str, object]],
        *,
        deadline_s: float = 60.0,
        num_workers: int = 64,
        memory_bytes: int = 4 << 30,
    ) -> None:
        self._environments = dict(environments)
        self._limits = WorkerLimits(
            num_workers=num_workers, deadline_s=deadline_s, num_retries=0, memory_bytes=memory_bytes
        )
        self._num_begun = 0
        self._open: set[int] = set()
        self._asked: set[int] = set()
        self._lost: list[tuple[int, Turn]] = []
        self._server: ServerProcess | None = None

    @property
    def num_asked(self) -> int:
        """Return the number of episodes whose next turn is awaited."""
        return len(self._asked) + len(self._lost)

    @property
    def pid(self) -> int:
        """Return the number of the server's process; starts it."""
        return self._running().pid

    def begin(self, environment: str, row: Mapping[str, Any], seed: int) -> int:
        """Begin an episode, and return its number.

        Raises:
            PreconditionError: an environment cannot be created.
        """
        place = list(self._environments).index(environment)
        number, self._num_begun = self._num_begun, self._num_begun + 1
        self._open.add(number)
        self._ask(number, pack("begin", number, place, json.dumps([row, seed])), self._running())
        return number

    def step(self, number: int, reply: Reply) -> None:
        """Send a reply to an episode."""
        self._ask(number, pack("step", number, reply.text, reply.is_complete), self._server)

    def score(self, number: int) -> None:
        """Ask for the reward of an episode that ends before its environment is done."""
        self._ask(number, pack("score", number), self._server)

    def end(self, number: int) -> None:
        """End an episode; idempotent."""
        if number in self._open and self._server is not None:
            self._server.channel.send(pack("end", number))
        self._open.discard(number)
        self._asked.discard(number)
        self._lost = [each for each in self._lost if each[0] != number]

    def poll(self, timeout_s: float = 0.0) -> list[tuple[int, Turn]]:
        """Return turns that arrived; waits up to `timeout_s` for the first one if any is awaited."""
        found, self._lost = self._lost, []
        if self._server is None or not self._asked:
            return found
        for frame in self._server.channel.wait(0.0 if found else timeout_s):
            number, turn = _read_answer(frame)
            if number in self._asked:
                self._asked.discard(number)
                found.append((number, turn))
        if self._server.channel.is_closed:
            how = self._server.close()
            self._server = None
            lost = Turn(error=f"the server of environments ended: {how}")
            found += [(number, lost) for number in sorted(self._asked)]
            self._asked.clear()
        return found

    def close(self) -> None:
        """Kill all workers and end the server; idempotent."""
        if self._server is not None:
            self._server.close()
        self._server = None
        self._open.clear()
        self._asked.clear()
        self._lost.clear()

    def _ask(self, number: int, message: bytes, server: ServerProcess | None) -> None:
        if server is None:  # it ended since the episode began
            self._lost.append((number, Turn(error="the server of environments ended during the episode")))
            return
        self._asked.add(number)
        server.channel.send(message)

    def _running(self) -> ServerProcess:
        if self._server is None:
            settings = {"environments": list(self._environments.items()), "limits": asdict(self._limits)}
            self._server = ServerProcess(main.__module__, settings, what="the environments")
        return self._server


def _read_answer(frame: bytes) -> tuple[int, Turn]:
    """Return the turn in a message; one with an error if it is not a turn."""
    kind, values = unpack(frame)
    number = int(values[0])
    if kind == "failed":
        return number, Turn(error=str(values[1]))
    try:
        return number, _read_turn(values[1])
    except (ValueError, TypeError, KeyError) as error:
        return number, Turn(error=f"the environment's turn is invalid: {error}"[:_MAX_ERROR_LENGTH])


def _read_turn(text: str) -> Turn:
    data = decode_object(text)
    messages, reward = data["messages"], data["reward"]
    for message in messages:
        if message["role"] not in _ROLES or not isinstance(message["content"], str):
            raise ValueError(f"a message has the role {message['role']!r} and content of {type(message['content'])}")
    if reward is not None and not math.isfinite(float(reward)):
        raise ValueError(f"the reward is {reward}")
    return Turn(
        messages=messages,
        reward=None if reward is None else float(reward),
        is_done=data["is_done"] is True,
        error=str(data["error"])[:_MAX_ERROR_LENGTH],
    )


class _EpisodeServer(WorkerServer):
    """Serves an episode in each worker; a deadline counts from each message to it."""

    _what = "turn"

    def __init__(self, channel: FrameStream, environments: Sequence[Environment], limits: WorkerLimits) -> None:
        super().__init__(channel, limits)
        self._environments = environments
        self._streams: dict[int, FrameStream] = {}
        self._pids: dict[int, int] = {}

    def _take(self, frame: bytes) -> None:
        kind, values = unpack(frame)
        number = values[0]
        if kind == "begin":
            content = values[2].encode()
            self._waiting.append(WorkRequest(number=number, verifier=values[1], content=content, retries_left=0))
            return
        for request in [each for each in self._waiting if each.number == number]:  # only its end can come so early
            self._waiting.remove(request)
        pid = self._pids.get(number)
        if pid not in self._workers:
            return  # that it ended was reported
        assert pid is not None
        if kind == "end":
            del self._pids[number]
        self._workers[pid].started_s = time.monotonic()
        self._streams[pid].send(frame)
        self._watch(pid)

    def _start(self, request: WorkRequest) -> None:
        super()._start(request)
        pid = next(reversed(self._workers))
        self._pids[request.number] = pid
        self._streams[pid] = FrameStream(self._workers[pid].reply, max_frame_bytes=_MAX_TURN_BYTES)

    def _run(self, request: WorkRequest, connection: socket.socket) -> NoReturn:
        try:
            begin_worker(connection.fileno())
            _serve(self._environments[request.verifier], FrameStream(connection), *decode_json(request.content))
        finally:
            os._exit(0)

    def _hear(self, pid: int) -> None:
        worker = self._workers.get(pid)
        if worker is None or worker.is_closed:
            return
        stream = self._streams[pid]
        stream.flush()
        for frame in stream.receive():
            worker.started_s = math.inf
            if self._pids.get(worker.request.number) == pid:
                self._channel.send(pack("turn", worker.request.number, frame.decode(errors="replace")))
        if stream.is_broken:
            error = f"the environment sent more than {_MAX_TURN_BYTES} bytes"
            self._fail(pid, Score(value=None, error=error, kind="died"))
        elif stream.is_closed:
            self._selector.unregister(worker.reply)
            worker.is_closed = True  # it is ending, and how is known then; or it goes on until its deadline
            worker.started_s = min(worker.started_s, time.monotonic())
        else:
            self._watch(pid)

    def _watch(self, pid: int) -> None:
        worker = self._workers[pid]
        if not worker.is_closed:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._streams[pid].has_unsent else 0)
            self._selector.modify(worker.reply, events, pid)

    def _answer(self, pid: int, score: Score) -> None:
        number = self._workers[pid].request.number
        self._kill(pid)
        del self._streams[pid]
        if self._pids.pop(number, None) is not None:  # else it was ended
            self._channel.send(pack("failed", number, score.error))


def _serve(environment: Environment, stream: FrameStream, row: Mapping[str, Any], seed: int) -> None:
    """Answer the messages of an episode in its own process, until it ends."""
    _send(stream, _turn(environment, "begin", [row, seed]))
    while not stream.is_closed:
        for frame in stream.wait(_IDLE_S):
            kind, values = unpack(frame)
            if kind == "end":
                environment.close()
                return
            _send(stream, _turn(environment, kind, values[1:]))


def _turn(environment: Environment, kind: str, values: Sequence[Any]) -> bytes:
    """Return the environment's turn as JSON; an exception is a turn with an error."""
    try:
        if kind == "begin":
            turn = environment.reset(*values)
        elif kind == "step":
            turn = environment.step(Reply(text=values[0], is_complete=values[1]))
        else:
            score = getattr(environment, "score", None)
            turn = Turn(reward=None if score is None else score(), is_done=True)
        data = {"messages": list(turn.messages), "reward": turn.reward, "is_done": turn.is_done, "error": turn.error}
        return json.dumps(data).encode()
    except BaseException as error:  # noqa: BLE001 - SystemExit of the user's code is an error of it
        text = f"{type(error).__name__}: {error}"[:_MAX_ERROR_LENGTH]
        return json.dumps({"messages": [], "reward": None, "is_done": True, "error": text}).encode()


def _send(stream: FrameStream, content: bytes) -> None:
    stream.send(content)
    while stream.has_unsent:
        stream.wait(0.05)


def main(descriptor: int) -> int:
    """Serve the pool on a socket until the pool closes it; return the exit code of the process."""
    connection = socket.socket(fileno=descriptor)
    settings = read_settings(connection)
    channel = FrameStream(connection)
    try:
        environments = [find_environment(name, values)() for name, values in settings["environments"]]
    except WindlassError as error:
        channel.send(json.dumps({"error": error.message, "hint": error.hint, "code": error.code}).encode())
        return 1
    except Exception as error:  # noqa: BLE001 - the user's code
        channel.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        return 1
    server = _EpisodeServer(channel, environments, WorkerLimits(**settings["limits"]))
    channel.send(json.dumps(server.facts).encode())
    server.serve()
    return 0
