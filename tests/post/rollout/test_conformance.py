"""Every engine against the same suite."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from tests.post.rollout.conformance import EngineConformance
from tests.post.rollout.policies import embedded
from tests.train.model import tiny
from windlass.core.clock import FakeClock
from windlass.post.rollout.engine import Engine
from windlass.post.rollout.fake import FakeEngine


class TestEmbedded(EngineConformance):
    def make(self, *, max_open: int | None = None) -> Engine:
        return embedded(max_open=max_open)

    def weights(self) -> Mapping[str, Tensor]:
        return dict(tiny.decoder().named_parameters())


class TestFake(EngineConformance):
    def make(self, *, max_open: int | None = None) -> Engine:
        return FakeEngine(FakeClock(), version=1, max_open=max_open)

    def weights(self) -> Mapping[str, Tensor]:
        return {}
