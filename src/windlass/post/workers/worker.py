"""Process of a `RemoteEngine`: one thread drives the engine, another sends heartbeats.

A child of the learner ends when its client closes the stream or when the client's process ends, whatever it is doing then.
A worker that joins learners by itself (`serve_learners`) goes on generating what it holds, and waits for the next one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from windlass.core.errors import WaitTimeoutError, WindlassError
from windlass.post.channel import FrameStream, read_settings
from windlass.post.rollout.engine import EngineError, OpenWork, RefillableEngine
from windlass.post.rollout.engines import build_engine
from windlass.post.rollout.types import Sample, SampleId, ScoreRequest
from windlass.post.workers.joining import LearnerSearch
from windlass.post.workers.messages import id_data, pack, read_id, read_request, sample_data, unpack
from windlass.supervise.linux import die_with_parent

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.post.weights.store import Probe, WeightRef

__all__ = ["main", "serve_learners"]

_STEP_S = 0.01
"""Time of the engine between two looks at the stream."""
_IDLE_S = 0.1
"""Time of a worker without work between two looks for a learner."""
_MAX_ERRORS = 3
"""Failures of an engine under one learner after which its worker ends."""
_OF_ENGINE = ("engine", "settings", "environments", "num_threads", "run")
"""Settings under which an engine and its samples can be kept for another learner."""
_VERSIONS_KEPT = 1000
"""Versions of which a worker remembers the digest."""


class _Worker:
    """An engine, what it generates, and the client that it generates for.

    Attributes:
        channel: None while there is no client; what is open is generated nevertheless.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        from windlass.post.weights.files import FileWeightStore  # lazy: torch; heartbeats come first
        from windlass.post.weights.store import WeightRef

        self.channel: FrameStream | None = None
        self._store = FileWeightStore(Path(settings["folder"]))
        self._engine = build_engine(settings["engine"], settings["settings"])
        self._samples = self._engine
        if settings["environments"] is not None:
            from windlass.post.environments.engine import EnvironmentSpec, with_environments  # lazy: as above

            self._samples = with_environments(self._engine, EnvironmentSpec(**settings["environments"]))
        self._open: dict[SampleId, int] = {}
        self._unsent: list[Sample] = []
        self._sent: dict[SampleId, Sample] = {}
        self._may_send = True
        self._has_cancelled = False
        self._held: WeightRef | None = None
        self._loaded: dict[int, str] = {}
        self._own: dict[str, Tensor] = {}
        self._load(WeightRef(**settings["ref"]), "recompute")

    def serve(self, channel: FrameStream, folder: Path, *, has_choice: bool = False) -> None:
        """Begin to work for a client.

        Args:
            folder: where it publishes weights.
            has_choice: it says first which samples it still wants.
        """
        from windlass.post.weights.files import FileWeightStore  # loaded in the constructor

        self.channel, self._store, self._may_send = channel, FileWeightStore(folder), not has_choice
        self._send_ready()

    def _send_ready(self) -> None:
        if self._has_cancelled:
            self._generate(0.0)
        finished = [sample.id for sample in self._unsent if sample.finish != "cancelled"]
        holds = dict.fromkeys([*self._open, *self._sent, *finished])
        facts = asdict(self._engine.facts)
        self._send("ready", facts, self._engine.version(), [id_data(each) for each in holds], [*self._loaded.items()])

    @property
    def is_busy(self) -> bool:
        """Return whether the engine has something to compute."""
        version = self._engine.version()
        return self._has_cancelled or any(oldest <= version for oldest in self._open.values())

    def step(self, wait_s: float) -> None:
        """Handle what the client sends, and generate for a moment.

        Args:
            wait_s: longest wait for a message if there is nothing to compute.
        """
        if self.channel is not None:
            for frame in self.channel.wait(0.0 if self.is_busy else wait_s):
                self._handle(*unpack(frame))
        self._generate(_STEP_S)
        if self._unsent and self._may_send and self.channel is not None:
            self._send("samples", [sample_data(sample) for sample in self._unsent])
            self._sent.update({sample.id: sample for sample in self._unsent if sample.finish != "cancelled"})
            self._unsent = []
            for old in list(self._sent)[: -self._engine.facts.max_open]:
                del self._sent[old]

    def _generate(self, wait_s: float) -> None:
        self._has_cancelled = False
        for sample in self._samples.poll(wait_s) if self._open else ():
            del self._open[sample.id]
            self._unsent.append(sample)

    def close(self) -> None:
        """Free the engine."""
        self._samples.close()

    def keep(self, wanted: Collection[SampleId]) -> None:
        """Drop all samples but these, and send those that are finished."""
        unwanted = [sample for sample in self._open if sample not in wanted]
        self._samples.cancel(unwanted)
        while any(sample in self._open for sample in unwanted):
            self._generate(0.0)
        finished = {**self._sent, **{sample.id: sample for sample in self._unsent if sample.finish != "cancelled"}}
        self._unsent = [sample for sample in finished.values() if sample.id in wanted]
        self._sent.clear()
        self._may_send = True

    def drop(self) -> None:
        """Drop all samples, and forget the weights."""
        self.keep(())
        self._held, self._loaded = None, {}

    def _send(self, kind: str, *values: object) -> None:
        assert self.channel is not None
        self.channel.send(pack(kind, *values))

    def _handle(self, kind: str, values: list[Any]) -> None:
        if kind == "submit":
            work = [read_request(each) for each in values[0]]
            num_taken = self._samples.submit(work)
            if num_taken < len(work):
                raise EngineError(
                    f"the engine took {num_taken} of {len(work)} samples, fewer than its facts promise",
                    hint="state its true `max_open`",
                )
            self._open.update({request.id: request.oldest_version for request in work})
        elif kind == "cancel":
            self._samples.cancel([read_id(each) for each in values[0]])
            self._has_cancelled = True
        elif kind == "score":
            scores = self._engine.score([ScoreRequest(ids=tuple(ids), start=start) for ids, start in values[1]])
            self._send("scores", values[0], scores)
        elif kind == "load":
            from windlass.post.weights.store import WeightRef  # loaded in the constructor

            self._load(WeightRef(**values[0]), values[1])
            self._send("loaded", self._engine.version())
        elif kind == "keep":
            self.keep({read_id(each) for each in values[0]})
        elif kind == "drop":
            self.drop()
            self._may_send = False
            self._send_ready()
        else:
            raise ValueError(f"unknown message `{kind}`")

    def _load(self, ref: WeightRef, open_work: OpenWork) -> None:
        """Load a version, or a newer one if it has been retired meanwhile.

        After an error the process ends: what is loaded then is unknown.
        """
        from windlass.post.weights.store import MissingVersionError  # loaded in the constructor

        while ref != self._held:
            try:
                self._fetch(ref, open_work)
            except MissingVersionError:
                newest = self._store.latest()
                if newest is None or newest == ref or newest.version < ref.version:
                    raise
                ref = newest

    def _fetch(self, ref: WeightRef, open_work: OpenWork) -> None:
        """Overwrite the engine's weights and check the version's probe."""
        from windlass.post.weights.probe import check_probe

        probes: list[Probe | None] = []

        def fill(own: Mapping[str, Tensor]) -> None:
            probes.append(self._store.fetch(ref, own, have=self._held))

        if hasattr(self._engine, "refill"):
            cast(RefillableEngine, self._engine).refill(fill, ref.version, open_work=open_work)
        else:
            self._own = self._own or self._store.empty(ref)
            fill(self._own)
            self._engine.load(self._own, ref.version, open_work=open_work)
        self._held = ref
        self._loaded = {version: digest for version, digest in self._loaded.items() if version < ref.version}
        self._loaded[ref.version] = ref.digest
        for old in list(self._loaded)[:-_VERSIONS_KEPT]:
            del self._loaded[old]
        if probes[0] is not None:
            check_probe(self._engine, probes[0], ref.version)


def _beat(channel: FrameStream, heartbeat_s: float, parent: int) -> None:
    """Send heartbeats; end the process with its parent, also in the middle of a computation."""
    waker = threading.Event()
    while not waker.wait(heartbeat_s):
        if os.getppid() != parent:
            os._exit(1)
        _send_heartbeat(channel)


def _send_heartbeat(channel: FrameStream) -> None:
    if not channel.has_unsent:  # the client is busy; it reads what is queued first
        channel.send(pack("heartbeat"))


def main(descriptor: int) -> int:
    """Serve a client on a socket; return the exit code of the process."""
    parent = os.getppid()
    connection = socket.socket(fileno=descriptor)
    settings = read_settings(connection)
    if settings["dies_with_parent"]:
        die_with_parent(signal.SIGKILL)
    channel = FrameStream(connection)
    threading.Thread(target=_beat, args=(channel, settings["heartbeat_s"], parent), daemon=True).start()
    try:
        with _reporting(channel):
            worker = _built(settings)
            worker.serve(channel, Path(settings["folder"]))
            while not channel.is_closed:
                worker.step(settings["heartbeat_s"])
            worker.close()
    except WindlassError:
        return 1
    except Exception:  # noqa: BLE001 - the client learns of it
        traceback.print_exc(file=sys.stderr)
        return 1
    return 0


def serve_learners(folder: Path, *, name: str, wait_s: float, device: str | None = None) -> None:
    """Work for the learners of a run, one after another, until the run is finished.

    Args:
        folder: the run's folder of checkpoints.
        name: of this worker, unlike any other's.
        wait_s: longest time without a learner.
        device: where to compute; None: a GPU if there is one.

    Raises:
        WaitTimeoutError: there was no learner for too long.
        EngineError: the engine fails again and again.
    """
    joined = _Joined(LearnerSearch(folder, name), device)
    threading.Thread(target=joined.beat, daemon=True).start()
    try:
        joined.run(folder, wait_s)
    finally:
        joined.close()


class _Joined:
    """A worker that goes from learner to learner."""

    def __init__(self, search: LearnerSearch, device: str | None) -> None:
        self.channel: FrameStream | None = None
        self._search, self._device = search, device
        self._worker: _Worker | None = None
        self._settings: Mapping[str, Any] = {}
        self._num_errors = 0

    def run(self, folder: Path, wait_s: float) -> None:
        """Serve learners until the run is finished."""
        from windlass.post.weights.store import MissingVersionError  # lazy: torch

        alone_s = time.monotonic()
        while not self._search.is_finished:
            if self.channel is not None and not self.channel.is_closed:
                alone_s = time.monotonic()
            elif time.monotonic() - alone_s > wait_s:
                message = f"no learner in {folder} for {wait_s:.0f} s"
                hint = "start the run with `async.place=join`, or wait longer with `--wait`"
                raise WaitTimeoutError(message, hint=hint)
            try:
                self._step()
            except MissingVersionError:  # the learner has ended, and its successor removed what it had published
                self._leave()
            except EngineError as error:
                self._fail(error)

    def _step(self) -> None:
        if (found := self._search.take()) is not None:
            self._join(*found)
        if self.channel is not None and self.channel.is_closed:
            self._leave()
        if self._worker is not None:
            if self.channel is None and not self._worker.is_busy:
                time.sleep(_IDLE_S)
            with _reporting(self.channel) if self.channel is not None else contextlib.nullcontext():
                self._worker.step(_IDLE_S)
        elif self.channel is None:
            time.sleep(_IDLE_S)

    def beat(self) -> None:
        """Send heartbeats for ever."""
        waker = threading.Event()
        while not waker.wait(float(self._settings.get("heartbeat_s", 0.5))):
            if (channel := self.channel) is not None:
                _send_heartbeat(channel)

    def close(self) -> None:
        """End the search, and free the engine."""
        self._search.close()
        if self._worker is not None:
            self._worker.close()

    def _leave(self) -> None:
        if self.channel is not None:
            self.channel.connection.close()
            self.channel.is_closed = True
            self.channel = None
        if self._worker is not None:
            self._worker.channel = None
        self._search.lost()

    def _fail(self, error: EngineError) -> None:
        """Begin again with another engine; what this one held is lost."""
        self._num_errors += 1
        if self._num_errors >= _MAX_ERRORS:
            raise error
        self._leave()
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def _join(self, connection: socket.socket, settings: dict[str, Any]) -> None:
        """Work for another learner; what was generated for the last one is kept if the settings are the same."""
        if "device" in settings["settings"]:
            settings["settings"]["device"] = self._device or _device()
        if self.channel is not None:
            self.channel.connection.close()
        self.channel = FrameStream(connection)
        if settings["folder"] != self._settings.get("folder"):
            self._num_errors = 0
        if any(settings[name] != self._settings.get(name) for name in _OF_ENGINE) and self._worker is not None:
            self._worker.close()
            self._worker = None
        self._settings = settings
        with _reporting(self.channel):
            self._worker = self._worker or _built(settings)
            self._worker.serve(self.channel, Path(settings["folder"]), has_choice=True)


def _device() -> str:
    import torch  # lazy: heartbeats come first

    return "cuda" if torch.cuda.is_available() else "cpu"


def _built(settings: Mapping[str, Any]) -> _Worker:
    import torch  # lazy: heartbeats come first

    torch.set_num_threads(settings["num_threads"])
    return _Worker(settings)


@contextlib.contextmanager
def _reporting(channel: FrameStream) -> Iterator[None]:
    """Tell the client of an error."""
    try:
        yield
    except WindlassError as error:
        _report(channel, error.message, error.hint)
        raise
    except Exception as error:
        _report(channel, f"{type(error).__name__}: {error}", "the trace is in this run's output")
        raise


def _report(channel: FrameStream, message: str, hint: str) -> None:
    channel.send(pack("error", message, hint))
    while channel.has_unsent:
        channel.wait(_STEP_S)
