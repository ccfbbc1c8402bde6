"""A stage whose experiments run on the lab's Slurm: `slurm_stage`, and `accounting_stage` where sacct answers.

`far_stage` reaches it by ssh alone.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.slurm import SlurmLab
from tests.system.slurm.slurm_stage import FAR, SlurmStage
from windlass.backends.site_shell import SshShell
from windlass.runs.home import Home


@pytest.fixture
def slurm_stage(tmp_path: Path, home: Path, slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmStage]:
    """Without accounting."""
    yield from _stage(tmp_path, home, slurm, monkeypatch)


@pytest.fixture
def accounting_stage(
    tmp_path: Path, home: Path, slurm_accounting: SlurmLab, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmStage]:
    """With accounting."""
    yield from _stage(tmp_path, home, slurm_accounting, monkeypatch)


@pytest.fixture
def far_stage(tmp_path: Path, home: Path, slurm: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmStage]:
    """Over ssh; `tmp_path / "cluster"` is the site's shared folder, and the code is a repository with one commit."""
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("WINDLASS_SSH_CONFIG", str(slurm.hosts.ssh_config))
    stage = SlurmStage(tmp_path, Home(home), slurm)
    (tmp_path / "cluster").mkdir()
    stage.write_far_site(tmp_path / "cluster")
    stage.experiment(stage.task("true"))
    for argv in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "code"]):
        subprocess.run(["git", *argv], cwd=stage.code, check=True)
    yield stage
    stage.close()
    SshShell(FAR, config=slurm.hosts.ssh_config).close()


def _stage(tmp_path: Path, home: Path, lab: SlurmLab, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmStage]:
    monkeypatch.setenv("SLURM_CONF", lab.env["SLURM_CONF"])
    stage = SlurmStage(tmp_path, Home(home), lab)
    yield stage
    stage.close()
