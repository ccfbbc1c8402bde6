"""Hosts that exist: one whose container stays is not given back until the container is gone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from windlass.backends.site_shell import LocalShell
from windlass.cluster.providers.ssh.provider import SshProvider
from windlass.core.errors import PreconditionError
from windlass.supervise.node.container import NOT_REMOVED
from windlass.supervise.node.spec import NodeStatus


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a host, whose python3 is a script."""
    (tmp_path / "programs").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'programs'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(home: Path, text: str) -> None:
    path = home / "programs" / "python3"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_host_with_a_container_that_stays_is_in_use_until_it_is_gone(home: Path) -> None:
    archive = home / "windlass-1.pyz"
    archive.write_bytes(b"zip")
    provider = SshProvider(["gpu1"], lambda name: LocalShell(), archive)
    node = home / ".windlass" / "clusters" / "c-1" / "t"
    node.mkdir(parents=True)
    (node / "claim.json").write_text(json.dumps({"group": "head", "token": "t", "at": 1.0}))
    status = NodeStatus(token="t", state="failed", code="engine-failed", message="its time is over; not removed")
    (node / "status.json").write_bytes(status.to_json())
    (machine,) = provider.list_machines("c-1")
    python(home, f"echo podman does not remove the container x: busy >&2; echo podman rm x >&2; exit {NOT_REMOVED}")
    for _ in range(2):
        with pytest.raises(PreconditionError, match="podman does not remove the container x: busy") as caught:
            provider.terminate([machine.id])
        assert caught.value.code == "engine-failed"
        assert provider.list_machines("c-1") == [machine]
    python(home, "exit 0")
    provider.terminate([machine.id])
    assert provider.list_machines("c-1") == []
