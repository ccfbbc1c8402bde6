"""Engine in a process of its own: generates while this process does something else, and may die without it.

    engine = RemoteEngine(EngineSpec(settings={"model": to_data(config)}), folder, store.publish(weights, 0))
    engine.submit(work)
    engine.poll(1.0)
    engine.begin_load(store.publish(weights, 1))     # does not block; `engine.version()` says when it is done

The process ends with this one, unless it has joined by itself. What it sends is bounded, and is read as JSON.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from windlass.post.channel import ChildProcess, FrameStream
from windlass.post.rollout.engine import EngineError, EngineFacts, OpenWork
from windlass.post.rollout.waiting import check_request, check_work
from windlass.post.weights.files import FileWeightStore
from windlass.post.weights.store import WeightRef
from windlass.post.workers.messages import id_data, pack, read_id, read_sample, request_data, unpack

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.post.rollout.types import Sample, SampleId, SampleRequest, ScoreRequest

__all__ = ["MAX_FRAME_BYTES", "EngineProcess", "EngineSpec", "RemoteEngine", "StartProcess"]

_MODULE = "windlass.post.workers.worker"
MAX_FRAME_BYTES = 64 << 20
"""Longest message that a worker may send."""
_WAIT_S = 0.5
_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """An engine to run in a process, and how long it may be silent.

    Attributes:
        run: identity of everything that samples depend on; a worker that lived on keeps its samples if it is the same.
        engine: `embedded`, `transformers`, `fake`, or `module:function`, which gets the settings as keyword arguments.
        settings: JSON-safe settings of the engine. `embedded` and `transformers`: `model` (as `to_data` writes a
            ModelConfig), `tokenizer` (the same of a TokenizerConfig, needed for stop texts) and their own arguments.
            `fake`: arguments of FakeEngine and constants of its Script.
        environments: an EnvironmentSpec as a mapping; None: no environment answers samples.
        num_threads: threads that a computation uses; 1 keeps samples on a CPU the same to the last bit.
        start_s: longest time for imports, allocation and the first load.
        heartbeat_s: time between two signs of life.
        silence_s: time without one after which the process is killed, as it is stopped or its machine hangs.
    """

    engine: str = "embedded"
    settings: Mapping[str, Any] = field(default_factory=dict)
    environments: Mapping[str, Any] | None = None
    run: str = ""
    num_threads: int = 1
    start_s: float = 120.0
    heartbeat_s: float = 0.5
    silence_s: float = 15.0


class EngineProcess(Protocol):
    """A process that serves a `RemoteEngine`, and the stream to it."""

    channel: FrameStream

    @property
    def pid(self) -> int:
        """Return its number on its machine; 0 while unknown."""

    def close(self, timeout_s: float = ...) -> str:
        """Close the stream, wait for the process or end it; return how it ended. Idempotent."""


StartProcess: TypeAlias = Callable[[Mapping[str, object]], EngineProcess]


class RemoteEngine:
    """Client of an engine in a process; implements `RolloutEngine`.

    The constructor does not wait for the process: start several, then use them. What needs an answer (`facts`, `version`
    and `submit` until the process is ready; `score` and `load` always) blocks.

    Args:
        folder: folder of the `FileWeightStore` that versions are fetched from.
        ref: version to begin with.
        start: starts the process with the settings of its worker; None: a child of this process.
    """

    def __init__(self, spec: EngineSpec, folder: Path, ref: WeightRef, *, start: StartProcess | None = None) -> None:
        self._spec, self._folder = spec, folder
        self._facts: EngineFacts | None = None
        self._version = ref.version
        self.holds: tuple[SampleId, ...] = ()
        """Samples that the process had of another client when it became ready; it waits for `adopt` or `start_over`."""
        self.loaded: Mapping[int, str] = {}
        """Digests of the versions that it had loaded then."""
        self._open: dict[SampleId, SampleRequest] = {}
        self._cancelled: set[SampleId] = set()
        self._done: list[Sample] = []
        self._scores: dict[int, list[tuple[float, ...]]] = {}
        self._num_scores = self._num_loads = 0
        self._is_dropping = False
        self._error: EngineError | None = None
        self._start_s = self._heard_s = time.monotonic()
        settings = {
            "engine": spec.engine,
            "settings": dict(spec.settings),
            "environments": spec.environments,
            "run": spec.run,
            "num_threads": spec.num_threads,
            "heartbeat_s": spec.heartbeat_s,
            "folder": str(folder),
            "ref": asdict(ref),
            "dies_with_parent": start is None,
        }
        self._process: EngineProcess = (start or self._child)(settings)

    def _child(self, settings: Mapping[str, object]) -> ChildProcess:
        return ChildProcess(
            _MODULE,
            settings,
            environment={"OMP_NUM_THREADS": str(self._spec.num_threads)},
            has_output=True,
            max_frame_bytes=MAX_FRAME_BYTES,
        )

    @property
    def pid(self) -> int:
        """Return the number of the process."""
        return self._process.pid

    @property
    def is_ready(self) -> bool:
        """Return whether the engine has loaded its first version; does not block.

        Raises:
            EngineError: the process has ended.
        """
        self._listen(0.0)
        if self._error is not None:
            raise self._error
        return self._facts is not None

    @property
    def is_loading(self) -> bool:
        """Return whether a version was requested and is not loaded yet; as of the last call that received messages."""
        return self._num_loads > 0

    @property
    def is_closed(self) -> bool:
        """Return whether the engine was closed or its process is known to have ended."""
        return self._error is not None

    def adopt(self, requests: Sequence[SampleRequest]) -> None:
        """Take over some of the samples that the process holds, as if they had been submitted; it drops the others."""
        self._open.update({request.id: request for request in requests})
        self._send("keep", [id_data(request.id) for request in requests])

    def start_over(self) -> None:
        """Make the process drop all samples and forget its weights; it is not ready until it has."""
        self._send("drop")
        self._facts, self._start_s, self._is_dropping = None, time.monotonic(), True
        self._open.clear()
        self._cancelled.clear()
        self._done.clear()

    def open_work(self) -> list[SampleRequest]:
        """Return what was submitted and has not arrived, in the order of submission."""
        return list(self._open.values())

    @property
    def num_open(self) -> int:
        """Return the number of samples that were submitted and not returned."""
        return len(self._open) + len(self._done)

    @property
    def facts(self) -> EngineFacts:
        """Return what the engine can do."""
        self._wait_until(lambda: self._facts is not None)
        assert self._facts is not None
        return self._facts

    def version(self) -> int:
        """Return the version of the weights that the engine has loaded and checked."""
        self._wait_until(lambda: self._facts is not None)
        return self._version

    def submit(self, work: Sequence[SampleRequest]) -> int:
        """Take work from the front of the list and return how many; see `RolloutEngine.submit`."""
        facts = self.facts
        check_work(
            work,
            vocab_size=facts.vocab_size,
            max_length=facts.max_length,
            open_ids=self._open,
            can_decode=facts.has_stop_texts,
        )
        taken = work[: max(0, facts.max_open - len(self._open))]
        if taken:
            self._send("submit", [request_data(request) for request in taken])
            self._open.update({request.id: request for request in taken})
        return len(taken)

    def poll(self, timeout_s: float) -> Sequence[Sample]:
        """Return finished samples; waits up to `timeout_s` for the first one, see `RolloutEngine.poll`."""
        end_s = time.monotonic() + timeout_s
        self._listen(0.0)
        while not self._done and self._can_continue() and (left_s := end_s - time.monotonic()) > 0:
            self._listen(min(left_s, _WAIT_S))
        if self._error is not None and not self._done:
            raise self._error
        done, self._done = self._done, []
        return done

    def cancel(self, ids: Collection[SampleId]) -> None:
        """End open samples; `poll` returns what they have so far."""
        wanted = [sample for sample in dict.fromkeys(ids) if sample in self._open]
        if wanted:
            self._cancelled.update(wanted)
            self._send("cancel", [id_data(sample) for sample in wanted])

    def score(self, requests: Sequence[ScoreRequest]) -> Sequence[tuple[float, ...]]:
        """Return the log-probabilities of each request's tokens; blocks."""
        facts = self.facts
        for request in requests:
            check_request(request, vocab_size=facts.vocab_size, max_length=facts.max_length)
        number, self._num_scores = self._num_scores, self._num_scores + 1
        self._send("score", number, [[request.ids, request.start] for request in requests])
        self._wait_until(lambda: number in self._scores)
        return self._scores.pop(number)

    def begin_load(self, ref: WeightRef, *, open_work: OpenWork = "recompute") -> None:
        """Ask the engine to fetch, check and use a version, or a newer one if it is retired meanwhile; does not block.

        `version` returns the new number once it is loaded; if it cannot be loaded, the process ends and `poll` raises.
        """
        self._num_loads += 1
        self._send("load", asdict(ref), open_work)

    def load_version(self, ref: WeightRef, *, open_work: OpenWork = "recompute") -> None:
        """Make the engine fetch, check and use a version; blocks.

        Raises:
            EngineError: the version is damaged or absent, or its probe failed; the process has ended.
        """
        self.begin_load(ref, open_work=open_work)
        self._wait_until(lambda: not self._num_loads)

    def load(self, weights: Mapping[str, Tensor], version: int, *, open_work: OpenWork = "recompute") -> None:
        """Publish weights in the engine's folder, without a probe, and load them. Blocks."""
        self.load_version(FileWeightStore(self._folder).publish(weights, version), open_work=open_work)

    def close(self) -> None:
        """End the process and drop open work; idempotent."""
        self._process.close()
        self._done = []
        self._end(EngineError("the engine is closed", hint="start another one"))

    # ------------------------------------------------------------------------------------------------------ messages

    def _can_continue(self) -> bool:
        """Return whether a sample can be expected without another call."""
        if self._num_loads or self._facts is None or self._cancelled:
            return bool(self._open)
        return any(request.oldest_version <= self._version for request in self._open.values())

    def _send(self, kind: str, *values: object) -> None:
        if self._error is not None:
            raise self._error
        self._process.channel.send(pack(kind, *values))

    def _wait_until(self, is_done: Callable[[], bool]) -> None:
        while self._error is None and not is_done():
            self._listen(_WAIT_S)
        if self._error is not None:
            raise self._error

    def _listen(self, timeout_s: float) -> None:
        """Take what the process sends within a time; if it has ended, note why."""
        if self._error is not None:
            return
        channel = self._process.channel
        frames = channel.wait(timeout_s)
        now_s = time.monotonic()
        if frames:
            self._heard_s = now_s
        for frame in frames:
            try:
                self._take(*unpack(frame))
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                self._die(f"sent what is not a message: {frame[:40]!r}", error)
                return
        if channel.is_broken:
            self._die(f"sent a frame of more than {MAX_FRAME_BYTES} bytes")
        elif channel.is_closed:
            self._die("")
        elif self._facts is None and now_s - self._start_s > self._spec.start_s:
            self._die(f"was not ready within {self._spec.start_s:g} s")
        elif self._facts is not None and now_s - self._heard_s > self._spec.silence_s:
            self._die(f"gave no sign of life for {self._spec.silence_s:g} s")

    def _take(self, kind: str, values: list[Any]) -> None:
        if kind == "samples" and not self._is_dropping:
            for sample in [read_sample(each) for each in values[0]]:
                del self._open[sample.id]
                self._cancelled.discard(sample.id)
                self._done.append(sample)
        elif kind == "scores":
            self._scores[values[0]] = [tuple(row) for row in values[1]]
        elif kind == "loaded":
            self._num_loads -= 1
            self._version = values[0]
        elif kind == "ready":
            self._facts, self._version = EngineFacts(**values[0]), values[1]
            self.holds, self.loaded = tuple(read_id(each) for each in values[2]), dict(values[3])
            self._is_dropping = False
        elif kind == "error":
            self._end(EngineError(f"rollout worker {self.pid}: {values[0]}", hint=values[1]))
        elif kind not in {"heartbeat", "samples"}:
            raise ValueError(kind)

    def _die(self, what: str, cause: Exception | None = None) -> None:
        """Note the end of the process, which is killed if it misbehaves."""
        how = self._process.close(0.0 if what else _CLOSE_S)
        message = f"rollout worker {self.pid} {what or f'ended: {how}'}"
        self._end(EngineError(message, hint="start another engine; open work can be submitted again"), cause)

    def _end(self, error: EngineError, cause: Exception | None = None) -> None:
        if self._error is None:
            self._error, error.__cause__ = error, cause
        self._open.clear()
        self._cancelled.clear()
