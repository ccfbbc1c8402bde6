"""The cloud in memory does what every provider must do."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from windlass.cluster.config import ClusterConfig
from windlass.config.loading import load_config
from windlass.core.clock import FakeClock
from windlass.testing.fake_cloud import CloudFaults, FakeCloud
from windlass.testing.provider_conformance import ProviderBench, ProviderConformance

FILE = "{name: lab, place: {aws: {region: x}}, head: {types: [small]}, groups: {workers: {types: [small], max: 9}}}"
FAULTS = {"lost-reply": "lost_reply", "no-capacity": "no_capacity"}


class TestFakeCloud(ProviderConformance):
    @contextmanager
    def open_bench(self, folder: Path) -> Iterator[ProviderBench]:
        clock = FakeClock()
        usual = CloudFaults(lag_s=4.0, end_s=20.0)
        cloud = FakeCloud(clock, random.Random(7), faults=usual)

        @contextmanager
        def faults(kind: str) -> Iterator[None]:
            cloud.faults = CloudFaults(**{FAULTS.get(kind, kind): 1.0})
            yield
            cloud.faults = usual

        config = load_config(ClusterConfig, FILE, source="cluster.yaml").value
        yield ProviderBench(cloud, config, cluster="lab-1", clock=clock, faults=faults, cut=cloud.kill)
        assert cloud.alive() == []
