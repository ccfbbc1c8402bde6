"""Workers that are not a learner's children: they find learners, prove themselves, and keep what they hold."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.post.rollout.policies import work
from windlass.core.errors import WaitTimeoutError
from windlass.post.rollout.types import Sample
from windlass.post.weights.files import FileWeightStore
from windlass.post.workers.joining import ADDRESS_FILE, JoinedWorker, LearnerAddress, WorkerListener, tell_finished
from windlass.post.workers.remote import MAX_FRAME_BYTES, EngineSpec, RemoteEngine
from windlass.post.workers.worker import serve_learners

pytestmark = pytest.mark.system

SPEC = EngineSpec(
    engine="fake", settings={"num_slots": 4, "max_length": 64, "seconds_per_token": 0.02, "num_tokens": 20}, run="a"
)


class Learner:
    """A learner's side: a server, a version of weights, and the engine of its only worker."""

    def __init__(self, folder: Path, spec: EngineSpec = SPEC) -> None:
        self.server = WorkerListener(folder, "127.0.0.1", max_frame_bytes=MAX_FRAME_BYTES)
        self.weights = folder / f"weights-{self.server.address.incarnation}"
        self.ref = FileWeightStore(self.weights).publish({"w": torch.zeros(2)}, 3)
        self.worker = self._arrival()
        self.engine = RemoteEngine(spec, self.weights, self.ref, start=self.worker.begin)
        until(lambda: self.engine.is_ready)

    def _arrival(self) -> JoinedWorker:
        found: list[JoinedWorker] = []

        def has_come() -> bool:
            found.extend(self.server.arrivals())
            return bool(found)

        until(has_come)
        (worker,) = found
        return worker

    def end(self) -> None:
        self.engine.close()
        self.server.close()


def until(is_true: Callable[[], bool], timeout_s: float = 300.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def finish(engine: RemoteEngine) -> list[Sample]:
    found: list[Sample] = []
    while engine.num_open:
        found += engine.poll(10.0)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that a worker looks for learners in; its thread ends with the test."""
    thread = threading.Thread(target=serve_learners, args=(tmp_path,), kwargs={"name": "one", "wait_s": 600.0})
    thread.start()
    yield tmp_path
    tell_finished(tmp_path)
    thread.join(300)
    assert not thread.is_alive()


def test_what_a_worker_holds_is_taken_over_by_the_next_learner(folder: Path) -> None:
    first = Learner(folder)
    assert (first.worker.name, first.worker.incarnation, first.engine.holds) == ("one", 0, ())
    first.engine.adopt([])
    works = [work(1, member, max_new_tokens=30) for member in range(4)]
    assert first.engine.submit(works) == 4
    first.end()
    time.sleep(0.6)  # the worker finishes them meanwhile
    second = Learner(folder)
    assert second.worker.incarnation == 1
    assert set(second.engine.holds) == {each.id for each in works}
    assert second.engine.loaded == {3: first.ref.digest}
    assert second.ref.digest == first.ref.digest  # equal weights
    second.engine.adopt(works[:3])
    assert sorted(sample.id for sample in finish(second.engine)) == [each.id for each in works[:3]]
    second.engine.submit([work(2)])
    second.end()  # it may have sent the sample or not
    third = Learner(folder)
    assert set(third.engine.holds) >= {work(2).id}
    third.engine.start_over()
    until(lambda: third.engine.is_ready)
    assert (third.engine.holds, third.engine.loaded) == ((), {})
    third.engine.adopt([])
    third.engine.load_version(third.ref)
    third.engine.submit([work(2)])
    assert [sample.id for sample in finish(third.engine)] == [work(2).id]
    third.end()


def test_a_learner_of_another_run_gets_a_new_engine(folder: Path) -> None:
    first = Learner(folder)
    first.engine.adopt([])
    first.engine.submit([work(1, max_new_tokens=30)])
    first.end()
    other = Learner(folder, replace(SPEC, run="b"))
    assert other.engine.holds == ()
    other.end()


def test_a_worker_comes_back_to_the_same_learner(folder: Path) -> None:
    learner = Learner(folder)
    learner.engine.adopt([])
    learner.engine.submit([work(1, max_new_tokens=30)])
    learner.engine.close()  # the connection breaks
    back = learner._arrival()
    assert back.incarnation == learner.server.address.incarnation
    engine = RemoteEngine(SPEC, learner.weights, learner.ref, start=back.begin)
    until(lambda: engine.is_ready)
    assert engine.holds == (work(1).id,)
    engine.adopt([work(1, max_new_tokens=30)])
    assert len(finish(engine)) == 1
    engine.close()
    learner.server.close()


def test_the_key_is_private_and_neither_side_trusts_another(tmp_path: Path) -> None:
    server = WorkerListener(tmp_path, "127.0.0.1", max_frame_bytes=MAX_FRAME_BYTES)
    assert (tmp_path / ADDRESS_FILE).stat().st_mode & 0o777 == 0o600
    for content in (b"x" * 200, b"x" * 16 + b"y" * 32 + b'{"name": "w", "pid": 1, "incarnation": 0}\n'):
        with socket.create_connection((server.address.host, server.address.port), timeout=300) as stranger:
            stranger.sendall(content)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while data := stranger.recv(1000):
                    answer += data
            assert bytes.fromhex(server.address.key) not in answer
    assert server.arrivals() == []
    server.close()
    replace(server.address, key="00" * 32).write(tmp_path)  # somebody else listens at the old learner's port
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = LearnerAddress(host="127.0.0.1", port=listener.getsockname()[1], key="11" * 32, incarnation=7)
        address.write(tmp_path)
        thread = threading.Thread(target=serve_learners, args=(tmp_path,), kwargs={"name": "one", "wait_s": 600.0})
        thread.start()
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(300)
            connection.recv(16)
            settings = {"engine": "os:abort", "settings": {}}
            connection.sendall(b"z" * 48 + json.dumps(settings).encode() + b"\n")
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1000) == b""  # it hangs up
        tell_finished(tmp_path)
        thread.join(300)
        assert not thread.is_alive()


def test_a_worker_without_a_learner_gives_up(tmp_path: Path) -> None:
    with pytest.raises(WaitTimeoutError, match=r"no learner in .* for 1 s"):
        serve_learners(tmp_path, name="one", wait_s=1.0)
