"""Virtual clusters of a test: opened by their file, with faults, and gone without a trace at the end."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from windlass.cluster.config import ClusterConfig
from windlass.cluster.machine import Machine
from windlass.cluster.places import MachinePlace, open_place
from windlass.cluster.providers.protocol import CreateRequest, UncertainError
from windlass.cluster.providers.virtual.provider import VirtualProvider
from windlass.cluster.providers.virtual.records import CloudFolder
from windlass.config.loading import load_config
from windlass.core import process
from windlass.testing.provider_conformance import ProviderBench

T = TypeVar("T")

FILE = "{name: lab, place: {virtual: {}}, groups: {workers: {types: [small], max: 9}}}"


class VirtualLab:
    """One virtual cluster, as its client has it."""

    def __init__(self, folder: Path, cluster: str = "lab-1") -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.cluster = folder.resolve(), cluster
        self.config = load_config(ClusterConfig, FILE, source="cluster.yaml").value
        self.cloud = CloudFolder(self.folder / "virtual")
        self.place: MachinePlace = open_place(
            self.config, cluster=cluster, folder=folder, archive=folder / "windlass.pyz"
        )

    @property
    def provider(self) -> VirtualProvider:
        assert isinstance(self.place.provider, VirtualProvider)
        return self.place.provider

    def create(self, token: str, count: int = 1, boot: bytes = b"", deadline_at: float | None = None) -> list[Machine]:
        choice = self.provider.choices(self.config, "workers")[0]
        request = CreateRequest(
            token=token,
            cluster=self.cluster,
            group="workers",
            count=count,
            choice=choice,
            boot=boot,
            deadline_at=deadline_at,
        )
        return list(self.provider.create(request))

    def running(self, token: str) -> list[Machine]:
        """Wait until the machines of a request run, and return them."""
        until(lambda: all(each.state == "running" for each in self.provider.find(token)), f"{token} to run")
        return list(self.provider.find(token))

    def bench(self) -> ProviderBench:
        return ProviderBench(
            self.provider,
            self.config,
            cluster=self.cluster,
            faults=self.faults,
            cut=lambda machine: self.provider.call("lab.power-cut", ids=[machine]),
            unknown_id="v-0000000000",
        )

    @contextmanager
    def faults(self, kind: str) -> Iterator[None]:
        self.provider.call("lab.faults", faults=[{"kind": kind, "verb": "create", "count": 1000}])
        yield
        self.provider.call("lab.faults", faults=[])

    def servers(self) -> list[int]:
        """Return this folder's servers: not the process that starts one, nor a child that is about to be a program."""
        return [pid for pid in self._server_processes() if _leads_a_session(pid)]

    def _server_processes(self) -> list[int]:
        words = f"windlass.cluster.providers.virtual.server\0{self.cloud.path}\0".encode()
        return [pid for pid in process.descendants(1) if words in _bytes(f"/proc/{pid}/cmdline")]

    def kill_server(self) -> int:
        """SIGKILL the server, and wait until all its threads are gone, its socket with them; return how many there were."""
        found = []
        for pid in self._server_processes():
            with suppress(ProcessLookupError):  # the one that only starts it has ended
                found.append((os.pidfd_open(pid), _leads_a_session(pid)))
        for descriptor, _ in found:
            with suppress(ProcessLookupError):  # it has ended
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for descriptor, _ in found:
            assert select.select([descriptor], [], [], 60.0)[0], "the server does not die"
            os.close(descriptor)
        return sum(is_server for _, is_server in found)

    def boot_log(self, machine: str) -> str:
        path = self.cloud.machine(machine) / "boot.log"
        return path.read_text() if path.exists() else ""

    def processes(self) -> list[int]:
        """Return all processes of machines, by the variable that user data and process 1 have."""
        ids = list(self.cloud.read().machines)
        return process.find_by_environment("WINDLASS_VIRTUAL_ID", *ids) if ids else []

    def traces(self) -> list[str]:
        """Return what the cluster has on this machine now: processes, links, namespaces' mounts."""
        found = [f"process {pid}" for pid in (*self.processes(), *self._server_processes())]
        marks = {
            name: _bytes(f"/sys/class/net/{name}/ifalias").decode() for name in links()
        }  # others' links disturb ip(8)
        found += [name for name, mark in marks.items() if mark.strip() == str(self.cloud.path)]
        found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(self.folder) in line]
        return found

    def down(self) -> None:
        """End everything, as `windlass cluster down` does."""

        def is_down() -> bool:
            machines = answer(lambda: self.provider.list_machines(self.cluster))
            answer(lambda: self.provider.terminate([each.id for each in machines]))
            return not machines

        until(is_down, f"the machines to end; {self.traces()}")
        self.place.close()
        assert self.traces() == []


def answer(ask: Callable[[], T], limit_s: float = 60.0) -> T:
    """Ask until there is a reply: a request whose server is killed has none."""
    end_s = time.monotonic() + limit_s
    while True:
        try:
            return ask()
        except UncertainError:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.05)


def until(condition: Callable[[], object], what: str, limit_s: float = 300.0) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, f"waited {limit_s:g} s for {what}"
        time.sleep(0.02)


@contextmanager
def virtual_lab(folder: Path, cluster: str = "lab-1") -> Iterator[VirtualLab]:
    lab = VirtualLab(folder, cluster)
    try:
        yield lab
    finally:
        lab.down()


def links() -> set[str]:
    """Return the bridges and cables of all virtual clusters."""
    return {name for name in os.listdir("/sys/class/net") if name.startswith("wlv")}


def _leads_a_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
