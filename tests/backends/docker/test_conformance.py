"""The conformance suite on a real engine: jobs whose replicas are containers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.docker import BASE, DockerLab
from windlass.backends import Backend
from windlass.backends.docker.backend import DockerBackend
from windlass.supervise.container.engine import engine_variables
from windlass.supervise.job import ContainerConfig, JobDocument
from windlass.testing.conformance import BackendConformance, JobBench

pytestmark = pytest.mark.system


class TestDocker(BackendConformance):
    @pytest.fixture
    def backend(self, at_docker: DockerLab) -> Iterator[Backend]:
        yield DockerBackend()
        assert at_docker.left_overs() == []

    @pytest.fixture
    def bench(self, at_docker: DockerLab, tmp_path: Path) -> Iterator[JobBench]:
        yield from super().bench.__wrapped__(self, tmp_path)  # type: ignore[attr-defined]

    def dress(self, document: JobDocument) -> JobDocument:
        container = ContainerConfig(
            image=BASE, variables=engine_variables(), writable=(document.paths.run_dir,), cwd=document.command.cwd
        )
        return dataclasses.replace(document, container=container)
