from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from windlass.supervise.slurm import node_check
from windlass.supervise.slurm.node_check import CHECK_FILE, CheckSpec, check_node


@pytest.fixture(autouse=True)
def no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_check, "_listed_gpus", lambda facts: None)


def prepare(folder: Path, spec: CheckSpec, nonce: str = "n") -> Path:
    job = folder / str(spec.nodes)
    job.mkdir()
    (folder / "nonce").write_text(nonce)
    (job / CHECK_FILE).write_text(json.dumps(asdict(spec)))
    return job


def verdicts(job: Path, rank: int = 0) -> dict[str, tuple[str, str]]:
    result: dict[str, Any] = json.loads((job / f"result-{rank}.json").read_text())
    assert result["rank"] == rank
    return {finding["name"]: (finding["status"], finding["message"]) for finding in result["findings"]}


def test_one_node_looks_at_itself(tmp_path: Path) -> None:
    job = prepare(tmp_path, CheckSpec(nodes=1, nonce="n", gpus=2, node_local=str(tmp_path)))
    assert check_node(job, {"CUDA_VISIBLE_DEVICES": "0,3"}) == 0
    found = verdicts(job)
    assert {name for name, (status, _) in found.items() if status == "ok"} == {
        "python", "gpus", "node-local", "shared", "file locks", "file clock", "interface",
    }  # fmt: skip
    assert {name for name, (status, _) in found.items() if status == "not-tried"} == {"port", "clock", "all-reduce"}


def test_what_is_otherwise_than_the_profile_says_fails(tmp_path: Path) -> None:
    spec = CheckSpec(nodes=1, nonce="other", gpus=4, node_local=str(tmp_path / "no"), interface="hsn")
    job = prepare(tmp_path, spec)
    check_node(job, {"CUDA_VISIBLE_DEVICES": "0,3"})
    found = verdicts(job)
    assert found["gpus"] == ("failed", "2 here, 4 in the profile")
    assert found["shared"][0] == "failed"
    assert found["node-local"][0] == "failed"
    assert found["interface"][0] == "failed"
    assert "`hsn`" in found["interface"][1]
    assert found["port"] == ("not-tried", "no address to meet on")


def test_gpus_that_the_profile_does_not_know_are_counted(tmp_path: Path) -> None:
    job = prepare(tmp_path, CheckSpec(nodes=1, nonce="n", node_local=str(tmp_path)))
    check_node(job, {})
    assert verdicts(job)["gpus"] == ("not-tried", "0 here; not set in the profile")


def test_a_driver_of_another_cuda_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(facts: dict[str, object]) -> int:
        facts.update(driver="570.1", cuda="12.8")
        return 1

    monkeypatch.setattr(node_check, "_listed_gpus", listed)
    job = prepare(tmp_path, CheckSpec(nodes=1, nonce="n", gpus=1, cuda="12.7", node_local=str(tmp_path)))
    check_node(job, {})
    assert verdicts(job)["driver"] == ("failed", "570.1, CUDA 12.8 here, CUDA 12.7 in the profile")


@pytest.mark.system
def test_two_nodes_meet(tmp_path: Path) -> None:
    job = prepare(tmp_path, CheckSpec(nodes=2, nonce="n", node_local=str(tmp_path), wait_s=300))
    threads = [threading.Thread(target=check_node, args=(job, {"SLURM_PROCID": str(rank)})) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank in range(2):
        found = verdicts(job, rank)
        assert found["port"][0] == "ok", found
        assert found["clock"][0] == "ok", found
        assert found["all-reduce"] == ("not-tried", "no environment given")


@pytest.mark.system
def test_a_node_that_never_comes_is_said(tmp_path: Path) -> None:
    job = prepare(tmp_path, CheckSpec(nodes=2, nonce="n", node_local=str(tmp_path), wait_s=0.2))
    check_node(job, {"SLURM_PROCID": "0"})
    found = verdicts(job)
    assert found["port"] == ("failed", "no sign of 1 of 2 nodes within 0.2 s")
    assert found["clock"][0] == found["all-reduce"][0] == "not-tried"


@pytest.mark.system
def test_a_peer_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    job = prepare(tmp_path, CheckSpec(nodes=2, nonce="n", node_local=str(tmp_path), wait_s=0.2))
    card = {"address": "127.0.0.1", "port": 1, "free": 2, "host": "far"}
    (job / "card-1.json").write_text(json.dumps(card))
    check_node(job, {"SLURM_PROCID": "0"})
    status, message = verdicts(job)["port"]
    assert status == "failed"
    assert "far (127.0.0.1:1): " in message
    assert verdicts(job)["clock"] == ("not-tried", "no other node answered")


@pytest.mark.system
@pytest.mark.parametrize(
    ("program", "status", "message"),
    [
        ('echo \'{"missing": "No module named torch"}\'', "not-tried", "No module named torch"),
        (
            'echo \'{"backend": "gloo", "gbps": 1.5, "torch": "2", "right": true}\'',
            "ok",
            "1.50 GB/s bus bandwidth, gloo",
        ),
        ('echo \'{"backend": "nccl", "gbps": 1.5, "torch": "2", "right": false}\'', "failed", "wrong sums"),
        ("echo NCCL WARN no net >&2; exit 3", "failed", "NCCL WARN no net"),
        ('test "$NCCL_NET" = OFI && test -z "${GONE+x}" && echo \'{"missing": "x"}\'', "not-tried", "x"),
    ],
)
def test_what_the_reduction_says_is_the_verdict(tmp_path: Path, program: str, status: str, message: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    spec = CheckSpec(
        nodes=2,
        nonce="n",
        node_local=str(tmp_path),
        python=str(python),
        env={"NCCL_NET": "OFI", "GONE": None},
        wait_s=0.2,
    )
    job = prepare(tmp_path, spec)
    (job / "card-1.json").write_text(json.dumps({"address": "127.0.0.1", "port": 1, "free": 2, "host": "far"}))
    check_node(job, {"SLURM_PROCID": "0", "GONE": "1", "PATH": "/usr/bin:/bin"})
    found = verdicts(job)["all-reduce"]
    assert found[0] == status
    assert message in found[1]
