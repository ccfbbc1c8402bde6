"""A rented cluster on virtual machines with a real Ray, whose autoscaler makes the workers; for tests."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windlass.cluster.config import HEAD, ClusterConfig
from windlass.cluster.home import ClusterHome
from windlass.cluster.machine import GONE, Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import open_place
from windlass.cluster.providers.virtual.provider import VirtualProvider
from windlass.cluster.up import bring_down, bring_up
from windlass.config.loading import load_config
from windlass.runs.home import Home
from windlass.supervise.archive import ensure_archive
from windlass.supervise.node.spec import NodeStatus

__all__ = ["ScalingLab", "scaling_lab"]

FILE = """
name: lab
place: {{virtual: {{}}}}
python: {python}
head: {{types: [small], resources: {{CPU: 0, GPU: 0, object_store_memory: 80000000}}}}
groups:
  workers: {{types: [small], max: 3, resources: {{CPU: 2, GPU: 0, object_store_memory: 80000000}}}}
idle: 8s
ttl: 30m
"""

PREFIX = """
import json, ray, time
ray.init(log_to_driver=False)
def done(value):
    print("RESULT", json.dumps(value), flush=True)
"""


class ScalingLab:
    """One cluster; `text` replaces the file above."""

    def __init__(self, folder: Path, text: str) -> None:
        self.config = load_config(ClusterConfig, text, source="cluster.yaml").value
        self.archive = ensure_archive(folder / "cache")
        self.home = ClusterHome.create(Home(folder / "home"), self.config)
        self.place = open_place(self.config, cluster=self.home.id, folder=self.home.path, archive=self.archive)
        self.lines: list[str] = []

    @property
    def provider(self) -> VirtualProvider:
        assert isinstance(self.place.provider, VirtualProvider)
        return self.place.provider

    def up(self) -> dict[str, NodeStatus]:
        return bring_up(self.home, self.config, self.place, archive=self.archive, report=self.lines.append)

    def down(self) -> None:
        bring_down(self.home, self.config, self.place, report=self.lines.append)

    def workers(self) -> list[Machine]:
        """Return what the cloud has besides the head; this is not what the head believes."""
        machines = self.provider.list_machines(self.home.id)
        return [each for each in machines if each.group != HEAD and each.state not in GONE]

    @property
    def head(self) -> Machine:
        return next(each for each in self.home.state().living() if each.group == HEAD)

    @property
    def host(self) -> NodeHost:
        return self.place.host(self.head)

    def shell(self, argv: Sequence[str], *, timeout_s: float = 60, env: Mapping[str, str] | None = None) -> str:
        """Return what a command on the head prints."""
        done = self.host.shell.run(argv, timeout_s=timeout_s, env=env)
        assert done.code == 0, f"{argv}: {done.code}\n{done.out}{done.err}"
        return done.out

    def python(self, program: str, *, timeout_s: float = 300) -> Any:
        """Return what a driver on the head passes to `done`."""
        status = self.host.status(self.head.token)
        assert status is not None
        variables = {"RAY_ADDRESS": status.head, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.home.token}
        out = self.shell([self.config.python, "-c", PREFIX + program], timeout_s=timeout_s, env=variables)
        (line,) = [each for each in out.splitlines() if each.startswith("RESULT ")]
        return json.loads(line.partition(" ")[2])

    def records(self, kind: str) -> list[dict[str, Any]]:
        """Return lines of `node-status` of one kind."""
        folder = self.host.folder(self.head.token)
        program = 'set -- "$1" "$HOME"/.windlass/clusters/windlass-*.pyz; exec python3 -I -S "$2" node-status "$1"'
        lines = [json.loads(line) for line in self.shell(["sh", "-c", program, "sh", folder]).splitlines()]
        return [line for line in lines if line["kind"] == kind]

    def log(self, name: str) -> str:
        return self.shell(
            ["sh", "-c", 'cat "$1" || true', "sh", f"{self.host.folder(self.head.token)}/logs/{name}.log"]
        )

    def monitor(self) -> list[int]:
        """Return the processes of Ray's autoscaler on the head, by the head's numbers."""
        out = self.shell(["sh", "-c", "pgrep -f 'autoscaler/v2/[m]onitor.py' || true"])
        return [int(word) for word in out.split()]

    def until(self, condition: Any, what: str, *, timeout_s: float = 240) -> float:
        """Wait for a condition; return the seconds that it took."""
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() - began_s > timeout_s:
                raise TimeoutError(f"waited {timeout_s:g} s for {what}\n{self.log('monitor')[-6000:]}")
            time.sleep(0.2)
        return time.monotonic() - began_s


@contextmanager
def scaling_lab(folder: Path, text: str = FILE, *, python: str = sys.executable) -> Iterator[ScalingLab]:
    """Return a cluster that is gone afterwards; `python` has the Ray of its nodes."""
    lab = ScalingLab(folder, text.format(python=python))
    try:
        yield lab
    finally:
        lab.down()
        lab.place.close()
