"""Process of a `RemoteEngine`: one thread drives the engine, another sends heartbeats.

It ends when its client closes the stream or when the client's process ends, whatever it is doing then.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from windlass.core.clock import SystemClock
from windlass.core.errors import WindlassError
from windlass.post.channel import FrameStream, read_settings
from windlass.post.rollout.engine import EngineError, OpenWork, RefillableEngine, RolloutEngine
from windlass.post.rollout.messages import pack, read_id, read_request, sample_data, unpack
from windlass.post.rollout.types import SampleId, ScoreRequest
from windlass.supervise.linux import die_with_parent

if TYPE_CHECKING:
    from torch import Tensor

    from windlass.post.weights.store import Probe, WeightRef

__all__ = ["main"]

_STEP_S = 0.01
"""Time of the engine between two looks at the stream."""


class _Worker:
    def __init__(self, channel: FrameStream, settings: Mapping[str, Any]) -> None:
        from windlass.post.weights.files import FileWeightStore  # lazy: torch; heartbeats come first
        from windlass.post.weights.store import WeightRef

        self._channel = channel
        self._store = FileWeightStore(Path(settings["folder"]))
        self._engine = _build(settings["engine"], settings["settings"])
        self._open: dict[SampleId, int] = {}
        self._has_cancelled = False
        self._held: WeightRef | None = None
        self._own: dict[str, Tensor] = {}
        self._heartbeat_s: float = settings["heartbeat_s"]
        self._load(WeightRef(**settings["ref"]), "recompute")
        channel.send(pack("ready", asdict(self._engine.facts), self._engine.version()))

    def run(self) -> None:
        """Serve the client until it closes the stream."""
        while not self._channel.is_closed:
            version = self._engine.version()
            is_busy = self._has_cancelled or any(oldest <= version for oldest in self._open.values())
            for frame in self._channel.wait(0.0 if is_busy else self._heartbeat_s):
                self._handle(*unpack(frame))
            self._has_cancelled = False
            samples = self._engine.poll(_STEP_S) if self._open else []
            if samples:
                for sample in samples:
                    del self._open[sample.id]
                self._channel.send(pack("samples", [sample_data(sample) for sample in samples]))
        self._engine.close()

    def _handle(self, kind: str, values: list[Any]) -> None:
        if kind == "submit":
            work = [read_request(each) for each in values[0]]
            num_taken = self._engine.submit(work)
            if num_taken < len(work):
                raise EngineError(
                    f"the engine took {num_taken} of {len(work)} samples, fewer than its facts promise",
                    hint="state its true `max_open`",
                )
            self._open.update({request.id: request.oldest_version for request in work})
        elif kind == "cancel":
            self._engine.cancel([read_id(each) for each in values[0]])
            self._has_cancelled = True
        elif kind == "score":
            scores = self._engine.score([ScoreRequest(ids=tuple(ids), start=start) for ids, start in values[1]])
            self._channel.send(pack("scores", values[0], scores))
        elif kind == "load":
            from windlass.post.weights.store import WeightRef  # loaded in the constructor

            self._load(WeightRef(**values[0]), values[1])
            self._channel.send(pack("loaded", self._engine.version()))
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
        if probes[0] is not None:
            check_probe(self._engine, probes[0], ref.version)


def _build(name: str, settings: Mapping[str, Any]) -> RolloutEngine:
    if ":" in name:
        module, _, function = name.partition(":")
        engine: RolloutEngine = getattr(import_module(module), function)(**settings)
        return engine
    return _ENGINES[name](dict(settings))


def _embedded(settings: dict[str, Any]) -> RolloutEngine:
    from windlass.post.rollout.embedded import EmbeddedEngine

    model, arguments = _arguments(settings)
    return EmbeddedEngine(model, None, **arguments)


def _transformers(settings: dict[str, Any]) -> RolloutEngine:
    from windlass.post.rollout.transformers import TransformersEngine

    model, arguments = _arguments(settings)
    return TransformersEngine(model, None, **arguments)


def _arguments(settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the model's settings, and the engine's arguments."""
    import torch

    from windlass.config.loading import from_data
    from windlass.train.data.config import TokenizerConfig
    from windlass.train.data.tokenizer import load_tokenizer
    from windlass.train.model.config import ModelConfig

    model, tokenizer = settings.pop("model"), settings.pop("tokenizer", None)
    if tokenizer is not None:
        settings["decode"] = load_tokenizer(from_data(TokenizerConfig, tokenizer)).decode
    if "dtype" in settings:
        settings["dtype"] = getattr(torch, settings["dtype"])
    return from_data(ModelConfig, model), settings


def _fake(settings: dict[str, Any]) -> RolloutEngine:
    from windlass.post.rollout.fake import FakeEngine, Script

    token_s, num_tokens = settings.pop("seconds_per_token", 0.01), settings.pop("num_tokens", None)
    delay_s, load_s = settings.pop("delay_s", 0.0), settings.pop("load_s", 0.0)
    script = Script(
        num_tokens=lambda request: num_tokens,
        seconds_per_token=lambda request: token_s,
        delay_s=lambda request: delay_s,
        load_s=load_s,
    )
    return FakeEngine(SystemClock(), script, **settings)


_ENGINES: Mapping[str, Callable[[dict[str, Any]], RolloutEngine]] = {
    "embedded": _embedded,
    "transformers": _transformers,
    "fake": _fake,
}


def _beat(channel: FrameStream, heartbeat_s: float, parent: int) -> None:
    """Send heartbeats; end the process with its parent, also in the middle of a computation."""
    waker = threading.Event()
    while not waker.wait(heartbeat_s):
        if os.getppid() != parent:
            os._exit(1)
        if not channel.has_unsent:  # the client is busy; it reads what is queued first
            channel.send(pack("heartbeat"))


def main(descriptor: int) -> int:
    """Serve a client on a socket; return the exit code of the process."""
    parent = os.getppid()
    connection = socket.socket(fileno=descriptor)
    settings = read_settings(connection)
    if settings["dies_with_thread"]:
        die_with_parent(signal.SIGKILL)
    channel = FrameStream(connection)
    threading.Thread(target=_beat, args=(channel, settings["heartbeat_s"], parent), daemon=True).start()
    try:
        import torch  # lazy: heartbeats come first

        torch.set_num_threads(settings["num_threads"])
        _Worker(channel, settings).run()
    except WindlassError as error:
        _report(channel, error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - the client learns of it
        traceback.print_exc(file=sys.stderr)
        _report(channel, f"{type(error).__name__}: {error}", "the trace is in this run's output")
    else:
        return 0
    return 1


def _report(channel: FrameStream, message: str, hint: str) -> None:
    channel.send(pack("error", message, hint))
    while channel.has_unsent:
        channel.wait(_STEP_S)
