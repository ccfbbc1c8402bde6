from __future__ import annotations

from pathlib import Path

import pytest

from windlass.supervise.gang.incarnation import LOCAL, Incarnation
from windlass.supervise.job import JobDocument, JobPaths, QueueRequest, ReplicaCommand, SiteSettings
from windlass.supervise.replica.preflight import preflight


def job(*checks: str, gpus: int = 0) -> JobDocument:
    site, queue = SiteSettings(preflight=checks), QueueRequest(gpus_per_node=gpus)
    return JobDocument("r", "t", 1, "x", ReplicaCommand(("true",)), JobPaths("/r"), site=site, queue=queue)


def test_a_site_that_asks_for_nothing_gets_nothing() -> None:
    assert preflight(job(gpus=4), LOCAL, "nowhere", {}) == ""


@pytest.mark.parametrize(("named", "problem"), [("0,1,2,3", ""), ("0,1", "has 2 GPUs, the job requested 4"), ("", "")])
def test_gpus_are_counted(named: str, problem: str) -> None:
    found = preflight(job("gpu-count", gpus=4), LOCAL, "", {"CUDA_VISIBLE_DEVICES": named})
    assert problem in found
    assert bool(found) == bool(problem)


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("echo 'GPU 0: H100 (UUID: a)'; echo 'GPU 1: H100 (UUID: b)'", ""),
        ("echo 'GPU 0: H100 (UUID: a)'", "the driver lists 1 GPU, the job requested 2"),
        ("echo 'GPU 0: H100'; echo '  MIG 1g.10gb Device 0: (a)'; echo '  MIG 1g.10gb Device 1: (b)'", ""),
        (
            "echo 'Unable to determine the device handle for GPU1: Unknown Error'; exit 255",
            "nvidia-smi failed: Unable to",
        ),
        ("exec sleep 60", "nvidia-smi did not list the GPUs within 0.2 s"),
    ],
)
def test_a_gpu_that_broke_is_still_in_the_schedulers_books(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, problem: str
) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    if "0.2" in problem:
        monkeypatch.setattr("windlass.supervise.replica.preflight._LISTING_S", 0.2)
    environ = {"SLURM_GPUS_ON_NODE": "2", "PATH": str(tmp_path)}
    assert preflight(job("gpu-count", gpus=0), LOCAL, "", environ) == ""
    found = preflight(job("gpu-count", gpus=2), LOCAL, "", environ)
    assert found.startswith(problem)
    assert bool(found) == bool(problem)


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    assert preflight(job("disk"), LOCAL, "", {"TMPDIR": str(tmp_path)}) == ""
    assert "cannot be used: No such file" in preflight(job("disk"), LOCAL, "", {"TMPDIR": str(tmp_path / "no")})


def test_an_address_that_is_not_ours() -> None:
    assert preflight(job("port"), LOCAL, "127.0.0.1", {}) == ""
    assert "cannot open a port on 203.0.113.7" in preflight(job("port"), LOCAL, "203.0.113.7", {})


def test_a_clock_that_is_far_away() -> None:
    assert preflight(job("clock"), Incarnation("7.0", began_at=1.0, skew_s=-5.0), "", {}) == ""
    assert "by 300 s" in preflight(job("clock"), Incarnation("7.0", began_at=1.0, skew_s=-300.0), "", {})
    assert preflight(job("clock"), LOCAL, "", {}) == ""


def test_the_first_problem_is_told() -> None:
    environ = {"TMPDIR": "/nowhere", "SLURM_GPUS_ON_NODE": "1"}
    assert "GPUs" in preflight(job("clock", "gpu-count", "disk", gpus=2), LOCAL, "", environ)
