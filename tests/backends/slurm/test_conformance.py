"""The conformance suite on real Slurm: without and with accounting, and over ssh."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.slurm.dressing import dressed, lab_profile
from tests.lab.slurm import SlurmLab
from windlass.backends import Backend
from windlass.backends.site_shell import SshShell
from windlass.backends.slurm.backend import SlurmBackend
from windlass.supervise.job import JobDocument
from windlass.testing.conformance import BackendConformance

pytestmark = pytest.mark.system


class TestSlurm(BackendConformance):
    @pytest.fixture
    def backend(self, slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Backend:
        monkeypatch.setenv("SLURM_CONF", slurm.env["SLURM_CONF"])
        return SlurmBackend(lab_profile())

    def dress(self, document: JobDocument) -> JobDocument:
        return dressed(document)


class TestSlurmWithAccounting(BackendConformance):
    @pytest.fixture
    def backend(self, slurm_accounting: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Backend:
        monkeypatch.setenv("SLURM_CONF", slurm_accounting.env["SLURM_CONF"])
        return SlurmBackend(lab_profile(has_accounting=True))

    def dress(self, document: JobDocument) -> JobDocument:
        return dressed(document)


class TestSlurmOverSsh(BackendConformance):
    """The login host sees the same files, so nothing need be brought there."""

    @pytest.fixture
    def backend(self, slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
        monkeypatch.delenv("SLURM_CONF", raising=False)
        shell = SshShell("login", config=slurm.hosts.ssh_config)
        yield SlurmBackend(lab_profile(), shell=shell)
        shell.close()

    def dress(self, document: JobDocument) -> JobDocument:
        return dressed(document)
