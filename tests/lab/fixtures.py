"""Fixtures of virtual hosts, real Slurm and a real Docker engine: one of each kind a session, started when a test first
asks for it.

`docker` is an engine of our own with a registry; `at_docker` lets commands of the test process and its children use it.
A test may leave images in it, and nothing else: conftest's leak watch looks. `slurm` and `slurm_accounting` are whole before each test: conftest's leak watch names what a test left in them (jobs,
processes) and heals them. `at_slurm` gives the test process a SLURM_CONF.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.lab.cloud import CloudLab
from tests.lab.components import COMPONENTS, is_present
from tests.lab.docker import DockerLab
from tests.lab.hosts import Hosts
from tests.lab.slots import claim, dismantle
from tests.lab.slurm import SlurmLab
from tests.lab.slurm_conf import Options

__all__ = ["at_docker", "at_slurm", "cloud", "docker", "hosts", "registry", "slurm", "slurm_accounting"]


@pytest.fixture(scope="session")
def hosts() -> Iterator[Hosts]:
    """Three hosts, h1 to h3, with ssh (`hosts.ssh_config`); each has its own home folder and shares /tmp."""
    _need("ssh")
    slot = claim(f"hosts-of-{os.getpid()}")
    try:
        found = Hosts(slot, ("h1", "h2", "h3"))
        found.up()
        yield found
    finally:
        dismantle(slot)


@pytest.fixture(scope="session")
def _cloud() -> Iterator[CloudLab]:
    _need("ssh")
    _need("s3")
    lab = CloudLab()
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


@pytest.fixture
def cloud(_cloud: CloudLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudLab]:
    """An EC2 whose instances boot as hosts, and variables with which boto3 finds it; each test begins without any."""
    for name, value in _cloud.env.items():
        monkeypatch.setenv(name, value)
    yield _cloud
    _cloud.reset()


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmLab]:
    """Slurm of four nodes, n1 to n4, with four fake GPUs each, and a host `login`; no accounting."""
    _need("slurm")
    yield from _lab(Options(signals_preempted=True), "slurm")


@pytest.fixture(scope="session")
def slurm_accounting() -> Iterator[SlurmLab]:
    """The same with sacct, QOS low < normal < high and the accounts `lab` (default) and `other`."""
    _need("slurm-accounting")
    yield from _lab(Options(signals_preempted=True, has_accounting=True), "slurm-accounting")


@pytest.fixture
def at_slurm(slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> SlurmLab:
    """The lab `slurm`, whose commands work in this process and its children as they are."""
    monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
    return slurm


@pytest.fixture(scope="session")
def docker() -> Iterator[DockerLab]:
    """A Docker engine with the image tests.lab.docker.BASE, and a registry (`docker.registry`)."""
    _need("docker")
    lab = DockerLab(name=f"docker-of-{os.getpid()}")
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


@pytest.fixture
def at_docker(docker: DockerLab, monkeypatch: pytest.MonkeyPatch) -> DockerLab:
    """The lab `docker`, which docker, podman and buildah use in this process and its children as they are."""
    for name, value in docker.env.items():
        monkeypatch.setenv(name, value)
    return docker


@pytest.fixture
def registry(at_docker: DockerLab) -> str:
    """Address of the lab's registry, `127.0.0.1:<port>`."""
    return at_docker.registry


def _lab(options: Options, name: str) -> Iterator[SlurmLab]:
    lab = SlurmLab(options, name=f"{name}-of-{os.getpid()}")
    try:
        lab.up()
        yield lab
    finally:
        lab.down()


def _need(name: str) -> None:
    if not is_present(name):
        pytest.skip(f"needs {name}: {COMPONENTS[name].remedy}")
