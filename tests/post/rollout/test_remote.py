"""Engines in processes of their own: the suite of every engine, and what their death looks like."""

from __future__ import annotations

import os
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from torch import Tensor

from tests.post.rollout.conformance import EngineConformance
from tests.post.rollout.policies import embedded, finish, group, work
from tests.train.model import tiny
from windlass.config.encode import to_data
from windlass.core.process import descendants
from windlass.post.rollout.engine import RolloutEngine
from windlass.post.rollout.remote import EngineSpec, RemoteEngine
from windlass.post.rollout.types import Sample, SampleId
from windlass.post.weights.files import FileWeightStore

pytestmark = pytest.mark.system

EMBEDDED = {"model": to_data(tiny.config()), "num_slots": 4, "max_length": 64, "prefill_tokens": 32}
FAKE = {"num_slots": 4, "max_length": 64, "seconds_per_token": 0.002}


class RemoteConformance(EngineConformance):
    """What changes where an engine runs by itself: it is not stopped between two polls."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Iterator[None]:
        self._path, self._engines = tmp_path / "weights", list[RemoteEngine]()
        yield
        for engine in self._engines:
            engine.close()
        assert not [pid for engine in self._engines for pid in descendants(os.getpid()) if pid == engine.pid]

    def make(self, *, max_open: int | None = None) -> RolloutEngine:
        ref = FileWeightStore(self._path).publish(self.weights(), 1)
        spec = self.spec()
        settings = {**spec.settings, **({} if max_open is None else {"max_open": max_open})}
        self._engines.append(RemoteEngine(EngineSpec(engine=spec.engine, settings=settings), self._path, ref))
        return self._engines[-1]

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
