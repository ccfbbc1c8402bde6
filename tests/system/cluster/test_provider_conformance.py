"""Every provider does what the protocol says, beside real machines."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from tests.lab.cloud import CloudLab
from tests.lab.components import COMPONENTS, is_present
from tests.lab.ec2_front import Fault, FaultKind
from tests.lab.hosts import Hosts
from tests.system.cluster.virtual_lab import virtual_lab
from windlass.backends.site_shell import SshShell
from windlass.cluster.config import ClusterConfig
from windlass.cluster.places import open_place
from windlass.config.loading import load_config
from windlass.supervise.archive import ensure_archive
from windlass.supervise.node.boot import render_boot
from windlass.testing.provider_conformance import ProviderBench, ProviderConformance

pytestmark = pytest.mark.system

AWS = """
name: lab
place: {{aws: {{region: us-west-2, endpoint: "{url}"}}}}
head: {{types: [m5.large]}}
groups: {{workers: {{types: [m5.large], max: 9, market: spot}}}}
"""
EC2_FAULTS: dict[str, tuple[FaultKind, str, int]] = {
    "lost-reply": ("lost", "", 0),
    "dropped": ("dropped", "", 0),
    "no-capacity": ("error", "InsufficientInstanceCapacity", 500),
    "throttled": ("error", "RequestLimitExceeded", 503),
    "refused": ("error", "UnauthorizedOperation", 403),
}
SSH = "{name: lab, place: {ssh: {hosts: [h1, h2, h3]}}, groups: {workers: {count: 2}}}"


@pytest.mark.skipif(not is_present("ssh"), reason=f"needs ssh: {COMPONENTS['ssh'].remedy}")
class TestVirtual(ProviderConformance):
    @contextmanager
    def open_bench(self, folder: Path) -> Iterator[ProviderBench]:
        with virtual_lab(folder / "cluster") as lab:
            yield lab.bench()


@pytest.fixture(scope="class")
def cloud() -> Iterator[CloudLab]:
    for name in ("ssh", "s3"):  # moto has both S3 and EC2
        if not is_present(name):
            pytest.skip(f"needs {name}: {COMPONENTS[name].remedy}")
    lab = CloudLab(name="providers")
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


class TestAws(ProviderConformance):
    @pytest.fixture(autouse=True)
    def _reach(self, cloud: CloudLab, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cloud = cloud
        for name, value in cloud.env.items():
            monkeypatch.setenv(name, value)

    @contextmanager
    def open_bench(self, folder: Path) -> Iterator[ProviderBench]:
        front = self.cloud.front
        config = load_config(ClusterConfig, AWS.format(url=front.url), source="cluster.yaml").value
        cluster = f"lab-{secrets.token_hex(4)}"
        place = open_place(config, cluster=cluster, folder=folder, archive=folder / "windlass.pyz")

        @contextmanager
        def faults(kind: str) -> Iterator[None]:
            do, code, status = EC2_FAULTS[kind]
            front.order(Fault(do=do, times=1000, code=code, status=status))
            yield
            front.clear()

        def boot(at: float) -> bytes:
            return render_boot(shutdown="shutdown -h now", deadline_at=at, deadline_s=at - time.time())

        try:
            yield ProviderBench(
                place.provider,
                config,
                cluster=cluster,
                faults=faults,
                cut=lambda machine: front.interrupt(machine, 0.0),
                boot=boot,
                unknown_id="i-0123456789abcdef0",
            )
        finally:
            place.close()
            alive = front.ledger.alive()
            self.cloud.reset()
        assert alive == []


class TestSsh(ProviderConformance):
    can_fail: ClassVar[bool] = False
    can_cut: ClassVar[bool] = False
    is_rented: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def _reach(self, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WINDLASS_SSH_CONFIG", str(hosts.ssh_config))

    @contextmanager
    def open_bench(self, folder: Path) -> Iterator[ProviderBench]:
        config = load_config(ClusterConfig, SSH, source="cluster.yaml").value
        archive = ensure_archive(folder / "cache")
        place = open_place(config, cluster=f"lab-{folder.name[-8:]}", folder=folder, archive=archive)
        try:
            yield ProviderBench(place.provider, config, cluster=f"lab-{folder.name[-8:]}", unknown_id="h2/never-was")
        finally:
            for name in config.place.ssh.hosts if config.place.ssh else ():
                SshShell(name).close()  # connections are kept for ten minutes
