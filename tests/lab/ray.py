"""Ray for tests: a cluster on this machine, or one node per virtual host; nothing of it survives the process.

Ray's own folders have short names, for the paths of its sockets may not be longer than 107 bytes.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.hosts import REPO, Hosts, wait_until
from windlass.core import process

__all__ = ["RAY", "RAY_ENV", "HostsRay", "LocalRay", "free_port"]

_COMMAND = """
import ray.scripts.scripts as ray
from windlass.supervise.launchers import ray_start
ray.get_ray_client_dependency_error = lambda: "nobody asked for it"
ray_start._extend_node_wait()
ray.cli()
"""
RAY = (sys.executable, "-c", _COMMAND)
"""`ray`, but without a port that is the machine's alone, and not giving up a node that takes longer than 30 s to appear."""

_START_S = 300.0  # means hung: four nodes that start at once on two cores which other tests use too
RAY_ENV = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    # A node whose power is cut is seen dead after seconds, not after half a minute; one on a busy machine is not.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "5",
}
"""For every process of a test's Ray, drivers included."""

MARK = "WINDLASS_LAB_RAY"
"""Every process of a local node has it: which one it belongs to."""

_STORE = 80_000_000


def free_port() -> int:
    """A port of 127.0.0.2 that nobody had a moment ago."""
    with socket.socket() as door:
        door.bind(("127.0.0.2", 0))
        return int(door.getsockname()[1])


def _options(folder: str, *, num_cpus: int, num_gpus: int = 0, extra: Sequence[str] = ()) -> list[str]:
    found = [f"--num-cpus={num_cpus}", f"--num-gpus={num_gpus}", f"--object-store-memory={_STORE}"]
    return [*found, "--disable-usage-stats", f"--temp-dir={folder}", "--block", *extra]


class LocalRay:
    """A cluster on this machine's loopback; nodes may be added and killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._num_begun = 0
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        return f"127.0.0.2:{self.port}"  # for 127.0.0.1, Ray would take the machine's address in the network

    def add(
        self,
        name: str,
        *,
        num_cpus: int = 2,
        num_gpus: int = 0,
        resources: str = "{}",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start a node; the first is Ray's head. Returns when it is started; it may not have joined yet."""
        index = self._num_begun
        self._num_begun += 1
        place = [f"--node-ip-address=127.0.0.{index + 2}", f"--resources={resources}", f"--node-name={name}"]
        if index == 0:
            place += ["--head", f"--port={self.port}", "--include-dashboard=false"]
        else:
            place += [f"--address={self.address}"]
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{name}.log"
        options = _options(str(self.folder), num_cpus=num_cpus, num_gpus=num_gpus, extra=place)
        with log.open("wb") as file:
            self._nodes[name] = subprocess.Popen(
                [*RAY, "start", *options],
                env={**os.environ, **RAY_ENV, **(env or {}), MARK: f"{self.folder}:{name}"},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        wait_until(lambda: b"block" in log.read_bytes(), f"Ray's node {name}: {log}", timeout_s=_START_S)

    def kill(self, name: str) -> None:
        """End every process of a node at once."""
        node = self._nodes.pop(name)
        _end_all(node.pid, f"{self.folder}:{name}")
        node.wait(timeout=120)

    def down(self) -> None:
        """End all of it; idempotent."""
        for name in reversed(list(self._nodes)):
            self.kill(name)
        shutil.rmtree(self.folder, ignore_errors=True)


class HostsRay:
    """One node of Ray per virtual host; the first host holds Ray's head.

    Hosts need a folder of their own at /tmp (`own`).
    """

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self._doors: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        return f"{self.hosts.ip(self.hosts.names[0])}:6379"

    @property
    def environ(self) -> dict[str, str]:
        return {**RAY_ENV, "RAY_ADDRESS": self.address}

    def begin(self, name: str, *, num_cpus: int) -> None:
        """Start a node on a host that is up; returns at once."""
        place = [f"--node-ip-address={self.hosts.ip(name)}", f"--node-name={name}"]
        if name == self.hosts.names[0]:
            place += ["--head", "--port=6379", "--include-dashboard=false"]
        else:
            place += [f"--address={self.address}"]
        argv = [*RAY, "start", *_options("/tmp/r", num_cpus=num_cpus, extra=place)]
        with self._log(name).open("wb") as file:
            self._doors[name] = subprocess.Popen(
                self.hosts.inside(name, argv),
                env={**os.environ, **RAY_ENV, "PYTHONPATH": str(REPO)},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def wait(self, name: str) -> None:
        """Until a node that was begun is started; says what Ray said when it ended or never came."""

        def has_begun() -> bool:
            code = self._doors[name].poll()
            assert code is None, f"ray start on {name} ended with {code}:\n{self._log(name).read_text()}"
            return b"block" in self._log(name).read_bytes()

        try:
            wait_until(has_begun, f"Ray on {name}", timeout_s=_START_S)
        except TimeoutError as error:
            raise TimeoutError(f"{error}:\n{self._log(name).read_text()}") from None

    def run(self, name: str, argv: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a driver on a host; the caller waits for it, or kills it by its process."""
        with log.open("ab") as file:
            return subprocess.Popen(
                self.hosts.inside(name, argv),
                env={**os.environ, **self.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )

    def reap(self) -> None:
        """After the hosts are gone: the processes that stood at their doors."""
        for door in self._doors.values():
            door.wait(timeout=120)

    def _log(self, name: str) -> Path:
        return self.hosts.disk(name) / "ray.log"


def _end_all(root: int, mark: str) -> None:
    """SIGKILL for every process of a node, wherever in the process tree it stands by now.

    Those that name themselves overwrite their environment, where the mark is.
    """
    deadline = time.monotonic() + 120
    below = [identity for pid in process.descendants(root) if (identity := process.identify(pid)) is not None]
    while True:
        found = process.find_by_environment(MARK, mark) + [one.pid for one in below if process.is_alive(one)]
        if not found:
            return
        for pid in found:
            process.send_signal(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes of {mark} do not die: {found}")
        time.sleep(0.01)
