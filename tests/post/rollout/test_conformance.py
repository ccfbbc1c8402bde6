"""Every engine against the same suite."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tests.post.rollout.conformance import EngineConformance
from tests.post.rollout.policies import embedded
from tests.train.model import tiny
from windlass.core.clock import FakeClock
from windlass.post.rollout.engine import RolloutEngine
from windlass.post.rollout.fake import FakeEngine
from windlass.post.rollout.transformers import TransformersEngine


class TestEmbedded(EngineConformance):
    def make(self, *, max_open: int | None = None) -> RolloutEngine:
        return embedded(max_open=max_open)

    def weights(self) -> Mapping[str, Tensor]:
        return dict(tiny.decoder().named_parameters())


class TestFake(EngineConformance):
    def make(self, *, max_open: int | None = None) -> RolloutEngine:
        return FakeEngine(FakeClock(), version=1, max_open=max_open)

    def weights(self) -> Mapping[str, Tensor]:
        return {}


class TestTransformers(EngineConformance):
    def make(self, *, max_open: int | None = None) -> RolloutEngine:
        model = tiny.decoder(family="llama")
        settings = {"num_slots": 4, "max_length": 64, "version": 1, "max_open": max_open}
        return TransformersEngine(model.config, self.weights(), **settings)  # type: ignore[arg-type]

    def weights(self) -> Mapping[str, Tensor]:
        return dict(tiny.decoder(family="llama").named_parameters())

    def test_deterministic_engines_repeat_samples_in_any_order(self) -> None:
        assert not self.make().facts.is_deterministic

    def test_a_load_in_flight_splits_samples(self) -> None:
        assert not self.make().facts.has_in_flight_update
