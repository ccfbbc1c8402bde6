"""A machine over a shell: one command stores a spec and starts the agent, and one waits for another status."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from windlass.backends.site_shell import LocalShell
from windlass.cluster.nodes.host import NodeHost
from windlass.core.errors import PreconditionError
from windlass.core.process import ProcessId, identify
from windlass.supervise.node.container import NOT_REMOVED
from windlass.supervise.node.spec import NodeFolder, NodeSpec, NodeStatus

SPEC = NodeSpec(cluster="c-1", token="t", number=0)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeHost:
    monkeypatch.chdir(tmp_path)  # a shell begins in the user's home
    return NodeHost(LocalShell(), "c-1")


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "windlass-1.pyz"
    path.parent.mkdir()
    path.write_bytes(b"zip")
    return path


def program(folder: Path, line: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o700)
    return str(path)


def test_an_agent_is_started_with_its_spec_and_the_zipapp(host: NodeHost, archive: Path, tmp_path: Path) -> None:
    python = program(tmp_path, 'echo "$@" >> started')
    for _ in range(2):
        host.start(SPEC, archive, python)
    folder = tmp_path / host.folder("t")
    assert NodeFolder(folder).read_spec() == SPEC
    assert (folder / "spec.json").stat().st_mode & 0o077 == 0
    there = f".windlass/clusters/{archive.name}"
    assert (tmp_path / there).read_bytes() == b"zip"
    assert (tmp_path / "started").read_text() == f"-I -S {there} node-start {host.folder('t')}\n" * 2


def test_an_agent_that_is_not_started_is_an_error(host: NodeHost, archive: Path, tmp_path: Path) -> None:
    with pytest.raises(PreconditionError, match="`node-start` failed: no memory") as caught:
        host.start(SPEC, archive, program(tmp_path, "echo no memory >&2; exit 1"))
    assert caught.value.code == "node-failed"


def test_a_spec_that_cannot_be_stored_is_an_error_and_nothing_is_started(
    host: NodeHost, archive: Path, tmp_path: Path
) -> None:
    (tmp_path / ".windlass/clusters").mkdir(parents=True)
    (tmp_path / ".windlass/clusters/c-1").write_text("not a folder")
    with pytest.raises(PreconditionError, match=r"cannot store .*spec\.json"):
        host.start(SPEC, archive, program(tmp_path, "echo > started"))
    assert not (tmp_path / "started").exists()


def test_a_status_is_followed(host: NodeHost, tmp_path: Path) -> None:
    folder = NodeFolder(tmp_path / host.folder("t"))
    folder.path.mkdir(parents=True)
    at_once = host.follow("t", wait_s=0.0)
    assert next(at_once) is None
    first = NodeStatus(token="t", state="setup", message='echo "\\n"   ü')
    folder.write_status(first)
    assert [next(at_once), next(at_once)] == [first, first]
    patient, found = host.follow("t", wait_s=60.0), list[NodeStatus | None]()
    assert next(patient) == first
    waiting = threading.Thread(target=lambda: found.append(next(patient)))
    waiting.start()
    second = NodeStatus(token="t", state="ready")
    folder.write_status(second)
    waiting.join(50.0)
    assert found == [second]


def test_a_container_that_stays_is_named_with_what_to_type_and_the_claim_stays(
    host: NodeHost, archive: Path, tmp_path: Path
) -> None:
    claim = tmp_path / host.folder("t") / "claim.json"
    claim.parent.mkdir(parents=True)
    claim.write_text("{}")
    said = "echo a banner >&2; echo podman does not remove the container windlass-c-1: busy >&2"
    python = program(tmp_path, f"{said}; echo podman rm --force windlass-c-1 >&2; exit {NOT_REMOVED}")
    with pytest.raises(PreconditionError) as caught:
        host.stop("t", archive, python)
    name = host.shell.name
    assert caught.value.message == f"{name}: podman does not remove the container windlass-c-1: busy"
    assert caught.value.code == "engine-failed"
    assert f"`ssh {name} podman rm --force windlass-c-1`" in (caught.value.hint or "")
    assert claim.exists()
    host.stop("t", archive, program(tmp_path, "exit 0"))
    assert not claim.exists()


def test_an_agent_is_known_to_run_only_if_exactly_its_process_does(host: NodeHost, tmp_path: Path) -> None:
    assert host.agent("t") == (None, False)
    folder = NodeFolder(tmp_path / host.folder("t"))
    folder.path.mkdir(parents=True)
    this = identify(os.getpid())
    assert this is not None
    status = NodeStatus(token="t", state="ready", message='"process": "1:' + "\n\u00fc", process=str(this))
    folder.write_status(status)
    assert host.agent("t") == (status, True)
    with subprocess.Popen(["true"]) as ended:
        pass
    of_another_boot = replace(this, world="00000000." + this.world.partition(".")[2])
    later = replace(this, start_ticks=this.start_ticks + 1)
    for process in (of_another_boot, later, ProcessId(ended.pid, 1, this.world), ""):
        dead = replace(status, process=str(process))
        folder.write_status(dead)
        assert host.agent("t") == (dead, False)
