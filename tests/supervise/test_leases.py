from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from windlass.core.process import identify
from windlass.supervise.job import Lease
from windlass.supervise.leases import LeasableResources, acquire, release

MACHINE = LeasableResources(("0", "1"), 8.0, 1 << 30)
DEAD = "1:1:gone"


@pytest.fixture
def lease(tmp_path: Path) -> Lease:
    return Lease(str(tmp_path / "leases"), gpus=1)


def job(tmp_path: Path, name: str, **identities: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    if identities:
        (folder / "guard-0.json").write_text(json.dumps(identities))
    return folder


def here() -> str:
    return str(identify(os.getpid()))


def test_asking_again_changes_nothing(tmp_path: Path, lease: Lease) -> None:
    first = job(tmp_path, "first")
    assert acquire(lease, first, here(), "a", MACHINE) == (("0",), "")
    assert acquire(lease, first, here(), "a", MACHINE) == (("0",), "")
    assert acquire(lease, job(tmp_path, "second"), here(), "b", MACHINE) == (("1",), "")
    release(lease, first)
    assert acquire(lease, job(tmp_path, "third"), here(), "c", MACHINE) == (("0",), "")


@pytest.mark.parametrize("survivor", ["guard", "supervisor"])
def test_an_entry_lives_while_guard_or_supervisor_does(tmp_path: Path, lease: Lease, survivor: str) -> None:
    identities = {"guard": DEAD, "supervisor": DEAD, survivor: here()}
    acquire(lease, job(tmp_path, "first", **identities), DEAD, "a", MACHINE)
    assert acquire(lease, job(tmp_path, "second"), here(), "b", MACHINE) == (("1",), "")


def test_an_entry_ends_with_the_last_of_its_job(tmp_path: Path, lease: Lease) -> None:
    acquire(lease, job(tmp_path, "first", guard=DEAD, supervisor="None"), DEAD, "a", MACHINE)
    assert acquire(lease, job(tmp_path, "second"), here(), "b", MACHINE) == (("0",), "")


def test_another_leader_of_the_job_takes_the_entry_over(tmp_path: Path, lease: Lease) -> None:
    first = job(tmp_path, "first", guard=DEAD, supervisor=here())
    acquire(lease, first, DEAD, "a", MACHINE)
    assert acquire(lease, first, here(), "a", MACHINE) == (("0",), "")
    (first / "guard-0.json").unlink()
    assert acquire(lease, job(tmp_path, "second"), here(), "b", MACHINE) == (("1",), "")
