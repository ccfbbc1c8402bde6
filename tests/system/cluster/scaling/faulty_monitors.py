"""Monitors of a head's autoscaler that are processes of their own, to be killed anywhere.

Each drives the shipped provider through Ray's own adapter, as version 2 of the autoscaler does: a turn lists the machines,
and launches or terminates what the numbers in `wanted.json` lack or exceed. Ray itself does not run.

    python -m tests.system.cluster.scaling.faulty_monitors      reads a job as a line of JSON; writes `PID`, later `PID CODE`
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.system.cluster.faulty_clients import Clients
from windlass.cluster.providers.aws import provider as aws
from windlass.cluster.scaling import capacity
from windlass.cluster.scaling.monitor import read_config
from windlass.cluster.scaling.ray_config import ray_config
from windlass.core.errors import PreconditionError

__all__ = ["SEALED", "WANTED", "Monitors"]

SEALED = 3
"""Exit code of a monitor that found its journal sealed."""

WANTED = "wanted.json"
_FAILED = 4
_TURN_S = 0.1
_BATCH = 2
"""Most machines of one request to the provider; Ray's default is 5. Small ones make several of a launch, from several threads."""


class Monitors(Clients):
    """Starts monitors, one at a time, and kills them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__(env)
        self.close()  # of the clients' program
        argv = [sys.executable, "-m", "tests.system.cluster.scaling.faulty_monitors"]
        self._parent = subprocess.Popen(
            argv, env={**os.environ, **env}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )


class _Reader:
    """Ray's reader of its configuration, with one that does not change."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def get_cached_autoscaling_config(self) -> Any:
        return self._config


class _Turns:
    """What version 2 of the autoscaler remembers between two turns: launches under way, and machines that it ended."""

    def __init__(self, adapter: Any, folder: Path) -> None:
        self._adapter, self._folder = adapter, folder
        self._launches: dict[str, tuple[str, int]] = {}
        self._seen: dict[str, set[str]] = {}
        self._ending: set[str] = set()

    def play(self) -> None:
        """Play one turn."""
        machines = self._adapter.get_non_terminated()
        for each in machines.values():
            self._seen.setdefault(each.request_id, set()).add(each.cloud_instance_id)
        for error in self._adapter.poll_errors():
            if hasattr(error, "count"):  # of a launch
                group, count = self._launches.get(error.request_id, (error.node_type, 0))
                self._launches[error.request_id] = (group, count - error.count)
            else:
                self._ending.discard(error.cloud_instance_id)
        self._ending &= machines.keys()
        wanted = json.loads((self._folder / WANTED).read_text())
        for group, number in wanted.items():
            there = [name for name, each in machines.items() if each.node_type == group and name not in self._ending]
            coming = sum(self._coming(request) for request, (name, _) in self._launches.items() if name == group)
            missing = number - len(there) - coming
            if missing > 0:
                request = uuid.uuid4().hex
                self._launches[request] = (group, missing)
                self._adapter.launch({group: missing}, request)
            elif len(there) > number:
                ended = there[: len(there) - number]
                self._ending |= set(ended)
                self._adapter.terminate(ended, uuid.uuid4().hex)

    def _coming(self, request: str) -> int:
        return max(0, self._launches[request][1] - len(self._seen.get(request, ())))


def _monitor(folder: Path, cluster: str) -> None:
    """Play turns until somebody kills this process."""
    from ray.autoscaler._private.providers import _get_node_provider
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
    from ray.autoscaler.v2.instance_manager.node_provider import NodeProviderAdapter

    content = ray_config(read_config(folder), cluster=cluster, folder=folder)
    reader: Any = _Reader(AutoscalingConfig(content, skip_content_hash=True))
    provider = _get_node_provider(content["provider"], cluster)
    turns = _Turns(NodeProviderAdapter(provider, reader, max_launch_batch_per_type=_BATCH), folder)
    while True:
        try:
            turns.play()
        except Exception:  # noqa: BLE001 - Ray's monitor logs it too, and plays the next turn
            traceback.print_exc()
        time.sleep(_TURN_S)


def main() -> None:
    """Fork a monitor for each line of standard input."""
    import boto3
    import ray.autoscaler.v2.instance_manager.node_provider  # noqa: F401 - what a fork needs is imported once

    import windlass.cluster.scaling.node_provider  # noqa: F401

    boto3.session.Session().client("ec2")  # its model is read before the first fork
    for line in sys.stdin:
        job = json.loads(line)
        aws._OTHER_WINDOW_S, capacity.PAUSE_S = job["window_s"], job["window_s"]
        pid = os.fork()
        if not pid:
            code = _FAILED
            try:
                log = os.open(str(Path(job["folder"]) / "monitor.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(log, 2)
                _monitor(Path(job["folder"]), job["cluster"])
            except PreconditionError as error:
                code = SEALED if error.code == "cluster-down" else _FAILED
            finally:
                if code == _FAILED:
                    traceback.print_exc()
                os._exit(code)  # the parent's loop is not the child's
        _say(f"{pid}")
        _, status = os.waitpid(pid, 0)
        _say(f"{pid} {os.waitstatus_to_exitcode(status)}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
