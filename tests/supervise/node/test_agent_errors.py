"""End of a rented machine whose agent can start no process any more."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from windlass.supervise.node import agent
from windlass.supervise.node.spec import NodeFolder, NodeSpec


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_rented_machine_ends_although_its_agent_can_start_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    spec = NodeSpec(cluster="c-1", token="t", number=1, address="127.0.0.1", head="h:1", shutdown="off", setup=("x",))
    (tmp_path / "spec.json").write_bytes(spec.to_json())
    (tmp_path / "logs").mkdir()
    folder = NodeFolder(tmp_path)
    tries: list[str] = []
    if is_stopped:
        folder.request_stop()

    def exhausted(*words: object, **options: object) -> Any:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    def shut_down(argv: list[str], **options: object) -> Any:
        tries.append(argv[-1])
        if len(tries) == 1:
            exhausted()
        if len(tries) == 2:
            return SimpleNamespace(returncode=1)
        raise SystemExit  # the machine is off

    monkeypatch.setattr(agent, "become_subreaper", lambda: None)
    monkeypatch.setattr(agent, "set_process_name", lambda name: None)
    monkeypatch.setattr(agent, "signal", SimpleNamespace(signal=lambda *_: None, SIGTERM=15))
    monkeypatch.setattr(agent, "end_leftovers", lambda token, **_: None)
    monkeypatch.setattr(agent, "end_processes", exhausted)
    monkeypatch.setattr(agent, "run_step", lambda title, argv, environ, log, look: (look(), exhausted()))
    monkeypatch.setattr(agent, "await_machine_end", lambda *_: "its node failed")
    monkeypatch.setattr(agent, "subprocess", SimpleNamespace(run=shut_down, DEVNULL=-3))
    monkeypatch.setattr(agent, "_SHUTDOWN_AGAIN_S", 0.0)
    reading, writing = os.pipe()
    with pytest.raises(SystemExit):
        agent._Agent(folder, os.open(os.devnull, os.O_RDONLY)).run(writing)
    os.close(reading)
    assert tries == ["off"] * 3
