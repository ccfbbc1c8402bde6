"""Engines in processes of their own: the suite of every engine, and what their death looks like."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.post.rollout.conformance import EngineConformance
from tests.post.rollout.policies import embedded, finish, group, prompt, work
from tests.train.model import tiny
from windlass.config.encode import to_data
from windlass.core.process import descendants, identify, is_alive
from windlass.post.rollout.engine import EngineError, RolloutEngine
from windlass.post.rollout.types import Sample, SampleId, SampleRequest
from windlass.post.weights.files import FileWeightStore
from windlass.post.weights.probe import make_probe
from windlass.post.workers.remote import EngineSpec, RemoteEngine

pytestmark = pytest.mark.system

EMBEDDED = {"model": to_data(tiny.config()), "num_slots": 4, "max_length": 64, "prefill_tokens": 32}
FAKE = {"num_slots": 4, "max_length": 64, "seconds_per_token": 0.002}


class RemoteConformance(EngineConformance):
    """What changes where an engine runs by itself: it is not stopped between two polls."""

    path: Path
    shared: RemoteEngine

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _shared(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        """An engine for many tests: a start takes seconds."""
        cls.path = tmp_path_factory.mktemp("weights")
        cls.shared = cls().started()
        yield
        cls.shared.close()

    @pytest.fixture(autouse=True)
    def _own(self) -> Iterator[None]:
        self.own = list[RemoteEngine]()
        yield
        for engine in self.own:
            engine.close()

    def started(self, **settings: Any) -> RemoteEngine:
        ref, spec = FileWeightStore(self.path).publish(self.weights(), 1), self.spec()
        return RemoteEngine(EngineSpec(engine=spec.engine, settings={**spec.settings, **settings}), self.path, ref)

    def make(self, *, max_open: int | None = None) -> RolloutEngine:
        if max_open is not None or self.shared.is_closed:
            self.own.append(self.started(max_open=max_open))
            return self.own[-1]
        self.shared.cancel([request.id for request in self.shared.open_work()])
        while self.shared.num_open:
            self.shared.poll(60.0)
        self.shared.load(self.weights(), 1)
        return self.shared

    @abstractmethod
    def spec(self) -> EngineSpec: ...

    def test_a_load_in_flight_splits_samples(self) -> None:
        engine = self.make()
        assert engine.facts.has_in_flight_update
        for attempt in range(20):
            works = [work(number, max_new_tokens=50, attempt=attempt) for number in range(4)]
            engine.submit(works)
            time.sleep(0.01)
            version = engine.version()
            engine.load(self.weights(), version + 1)
            samples = list(finish_open(engine, 4).values())
            if all([span.version for span in sample.spans] == [version, version + 1] for sample in samples):
                return
        pytest.fail(f"no load in flight: {samples[0].spans}")


def finish_open(engine: RolloutEngine, count: int) -> dict[SampleId, Sample]:
    samples: dict[SampleId, Sample] = {}
    while len(samples) < count:
        samples.update({sample.id: sample for sample in engine.poll(60.0)})
    return samples


class TestRemoteEmbedded(RemoteConformance):
    def spec(self) -> EngineSpec:
        return EngineSpec(settings=EMBEDDED)

    def weights(self) -> Mapping[str, Tensor]:
        return dict(tiny.decoder().named_parameters())

    def test_samples_are_those_of_an_engine_in_this_process(self) -> None:
        works = [item for g in range(3) for item in group(g, 4)]
        remote, local = finish(self.make(), works), finish(embedded(), works)
        assert {key: (s.ids, s.logp, s.raw_logp) for key, s in remote.items()} == {
            key: (s.ids, s.logp, s.raw_logp) for key, s in local.items()
        }


class TestRemoteFake(RemoteConformance):
    def spec(self) -> EngineSpec:
        return EngineSpec(engine="fake", settings=FAKE)

    def weights(self) -> Mapping[str, Tensor]:
        return {}


# ------------------------------------------------------------------------------------------------------------- deaths


def start(tmp_path: Path, engine: str = "fake", settings: Mapping[str, Any] = FAKE, **spec: Any) -> RemoteEngine:
    weights = dict(tiny.decoder().named_parameters()) if engine == "embedded" else {}
    ref = FileWeightStore(tmp_path / "weights").publish(weights, 1)
    return RemoteEngine(EngineSpec(engine=engine, settings=settings, **spec), tmp_path / "weights", ref)


@pytest.fixture
def other_processes() -> set[int]:
    """Processes below this one before the test, such as those of labs."""
    return set(descendants(os.getpid()))


def test_kills_at_random_moments_lose_open_work_only(tmp_path: Path, other_processes: set[int]) -> None:
    """Work that was open is submitted to another engine: each sample comes once, and is the same as without kills."""
    works = [item for g in range(40) for item in group(g, 4, max_new_tokens=12)]
    expected = finish(embedded(), works)
    rng, samples, num_kills = random.Random(3), dict[SampleId, Sample](), 0
    standby = [start(tmp_path, "embedded", EMBEDDED) for _ in range(4)]
    while len(samples) < len(works):
        engine = standby.pop()
        left = [item for item in works if item.id not in samples]
        try:
            assert engine.facts.num_slots == 4
            kill_s = time.monotonic() + rng.uniform(0.0, 0.1) if standby else float("inf")
            while len(samples) < len(works):
                left = left[engine.submit(left) :]
                for sample in engine.poll(0.005):
                    assert sample.id not in samples
                    samples[sample.id] = sample
                if time.monotonic() > kill_s:
                    os.kill(engine.pid, signal.SIGKILL)
        except EngineError as error:
            num_kills += error.message == f"rollout worker {engine.pid} ended: signal SIGKILL"
        engine.close()
    assert num_kills == 3
    assert {key: (s.ids, s.logp) for key, s in samples.items()} == {key: (s.ids, s.logp) for key, s in expected.items()}
    assert set(descendants(os.getpid())) <= other_processes


def received(connection: socket.socket) -> bytes:
    """Return what has arrived and was not read yet."""
    try:
        return connection.recv(1 << 20, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""


def test_samples_that_arrived_before_a_death_are_returned(tmp_path: Path) -> None:
    engine = start(tmp_path)
    engine.submit(group(0, 2, max_new_tokens=2))
    connection, deadline = engine._process.channel.connection, time.monotonic() + 300
    while sum(map(received(connection).count, (b'"length"', b'"stop"'))) < 2:
        assert time.monotonic() < deadline, "no samples within five minutes"
        time.sleep(0.01)
    os.kill(engine.pid, signal.SIGKILL)
    os.waitid(os.P_PID, engine.pid, os.WEXITED | os.WNOWAIT)  # all of its threads have ended, and its end of the stream
    assert len(engine.poll(0)) == 2
    for _ in range(2):
        with pytest.raises(EngineError, match="signal SIGKILL"):
            engine.poll(1.0)
    with pytest.raises(EngineError, match="signal SIGKILL"):
        engine.submit([work(1)])
    engine.close()


def test_a_stopped_process_is_killed(tmp_path: Path, other_processes: set[int]) -> None:
    endless = {**FAKE, "seconds_per_token": 60.0}
    engine = start(tmp_path, settings=endless, heartbeat_s=0.05, silence_s=4.0)
    engine.submit([work(0, max_new_tokens=50)])
    os.kill(engine.pid, signal.SIGSTOP)
    with pytest.raises(EngineError, match=r"gave no sign of life for 4 s"):
        engine.poll(600.0)
    assert set(descendants(os.getpid())) <= other_processes
    engine.close()


def test_a_busy_client_does_not_take_a_living_process_for_dead(tmp_path: Path) -> None:
    engine = start(tmp_path, heartbeat_s=0.05, silence_s=4.0)
    engine.submit(group(0, 4))
    time.sleep(5.0)
    assert len(finish_open(engine, 4)) == 4
    engine.close()


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"\x00\x00\x00\x04oops", "sent what is not a message: b'oops'"),
        (b'\x00\x00\x00\x0f["samples",[[]]]', "sent what is not a message"),
        (b'\x00\x00\x00\x09["hello"]', "sent what is not a message"),
        (b"GET / HTTP/1.1\r\n\r\n", "sent a frame of more than"),
    ],
)
def test_garbage_ends_the_engine(tmp_path: Path, other_processes: set[int], sent: bytes, message: str) -> None:
    engine = start(tmp_path, f"{__name__}:garbage", {"sent": list(sent)})
    with pytest.raises(EngineError, match=message):
        assert engine.facts.num_slots
    assert set(descendants(os.getpid())) <= other_processes
    engine.close()


def garbage(sent: list[int]) -> RolloutEngine:
    """Engine whose library writes where it should not: to the stream of its client."""
    for descriptor in sorted(int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2):
        try:
            socket.socket(fileno=os.dup(descriptor)).send(bytes(sent))
        except OSError:
            continue
    time.sleep(60)
    raise AssertionError


def test_errors_of_the_engine_name_their_cause(tmp_path: Path) -> None:
    engine = start(tmp_path, "embedded", {**EMBEDDED, "num_slots": 1})
    with pytest.raises(EngineError, match="an engine of 1 slots of 64 tokens is not possible"):
        engine.version()
    engine.close()
    engine = start(tmp_path, "missing.module:function", {})
    with pytest.raises(EngineError, match=r"no module `missing\.module`"):
        engine.version()
    engine.close()


PARENT = """
import sys, time
from pathlib import Path
from tests.post.workers.test_remote import start
engine = start(Path(sys.argv[1]), heartbeat_s=0.1)
engine.facts
print(engine.pid, flush=True)
time.sleep(600)
"""
THREAD = """
import sys, threading, time
from pathlib import Path
from tests.post.workers.test_remote import start
engines = []
def run():
    engines.append(start(Path(sys.argv[1]), heartbeat_s=60.0))
thread = threading.Thread(target=run)
thread.start()
thread.join()
engines[0].facts  # it lives, and its thread does not
print(engines[0].pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(("script", "is_stopped"), [(PARENT, False), (PARENT, True), (THREAD, False), (THREAD, True)])
def test_the_death_of_the_parent_leaves_no_process(tmp_path: Path, script: str, is_stopped: bool) -> None:
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        worker = identify(int(parent.stdout.readline()))
        assert worker is not None
        if is_stopped:
            os.kill(worker.pid, signal.SIGSTOP)
        parent.kill()
    end_s = time.monotonic() + 120.0
    while is_alive(worker) and time.monotonic() < end_s:
        time.sleep(0.02)
    assert not is_alive(worker)


# ------------------------------------------------------------------------------------------------------------- probes


def spoil(weights: Mapping[str, Tensor], how: str) -> dict[str, Tensor]:
    """Weights that have the right names and shapes, and are not the learner's."""
    spoiled = {name: weight.detach().clone() for name, weight in weights.items()}
    first, second = "blocks.0.attention.q.weight", "blocks.1.attention.q.weight"
    if how == "one flipped bit":
        flat = spoiled[first].view(torch.int32).view(-1)
        flat[17] ^= 1 << 30
    elif how == "two swapped":
        spoiled[first], spoiled[second] = spoiled[second], spoiled[first]
    elif how == "not finite":
        spoiled[first][3, 3] = float("nan")
    else:
        spoiled = {name: weight.detach().clone() for name, weight in tiny.decoder().named_parameters()}
    return spoiled


def poll_for_ever(engine: RemoteEngine, samples: list[Sample]) -> None:
    while True:
        samples += engine.poll(10.0)


@pytest.mark.parametrize("how", ["one flipped bit", "two swapped", "not finite", "those of the version before"])
def test_weights_that_are_not_the_learners_serve_no_sample(tmp_path: Path, how: str) -> None:
    learner = tiny.decoder()
    store = FileWeightStore(tmp_path / "weights")
    rows = [prompt(length, seed=length) for length in (5, 12, 24)]
    ref = store.publish(dict(learner.named_parameters()), 1, make_probe(learner, rows))
    engine = RemoteEngine(EngineSpec(settings=EMBEDDED), store.folder, ref)
    assert finish(engine, [work(0)])
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    weights = dict(learner.named_parameters())
    probe = make_probe(learner, rows)
    engine.load_version(store.publish(weights, 2, probe))
    engine.submit(group(1, 4, max_new_tokens=59))
    wanted = SampleRequest(
        id=SampleId(group=9, member=0), prompt_ids=(1, 2), sampling=work(0).sampling, oldest_version=3
    )
    engine.submit([wanted])
    engine.begin_load(store.publish(spoil(weights, how), 3, probe))
    samples: list[Sample] = []
    with pytest.raises(EngineError, match=r"weights of version 3 are not the learner's: .* differ by .* at most 2e-05"):
        poll_for_ever(engine, samples)
    assert {span.version for sample in samples for span in sample.spans} <= {2}
    engine.close()


def test_a_version_that_was_retired_meanwhile_is_replaced_by_the_newest(tmp_path: Path) -> None:
    """As when the learner publishes again while an engine starts, or before it hears of the version before."""
    store, weights = FileWeightStore(tmp_path / "weights"), dict(tiny.decoder().named_parameters())
    refs = [store.publish(weights, version) for version in (1, 2)]
    store.retire(())
    engine = RemoteEngine(EngineSpec(settings=EMBEDDED), store.folder, refs[0])
    assert engine.version() == 2
    refs += [store.publish(weights, version) for version in (3, 4)]
    store.retire(())
    engine.load_version(refs[2])
    assert engine.version() == 4
    assert [span.version for span in finish(engine, [work(0)])[work(0).id].spans] == [4]
    store.publish(weights, 2)
    with pytest.raises(EngineError, match="do not exist any more"):
        engine.load_version(refs[2])
    engine.close()


@pytest.mark.parametrize("how", ["half", "old"])
def test_versions_that_are_not_what_was_published_serve_no_sample(tmp_path: Path, how: str) -> None:
    store, weights = FileWeightStore(tmp_path / "weights"), dict(tiny.decoder().named_parameters())
    engine = RemoteEngine(EngineSpec(settings=EMBEDDED), store.folder, store.publish(weights, 1))
    ref = store.publish(weights, 2)
    new = store.folder / "v00000002"
    if how == "half":
        os.truncate(new / "weights.safetensors", 9000)
    else:
        shutil.rmtree(new)
        shutil.copytree(store.folder / "v00000001", new)
    with pytest.raises(EngineError, match="of version 2 are damaged" if how == "half" else "and not version 2"):
        engine.load_version(ref)
    with pytest.raises(EngineError):
        engine.submit([work(0)])
    engine.close()
