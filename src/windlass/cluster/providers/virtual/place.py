"""Place of virtual machines as the client sees it: starts their server, and reaches machines through their namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import windlass
from windlass.backends.site_shell import RawShellResult, TextShell, exchanged
from windlass.cluster.config import ClusterConfig
from windlass.cluster.machine import Machine
from windlass.cluster.nodes.host import NodeHost
from windlass.cluster.places import MachinePlace
from windlass.cluster.providers.virtual.boot import environment_of
from windlass.cluster.providers.virtual.network import CloudNetwork, has_network
from windlass.cluster.providers.virtual.provider import VirtualProvider
from windlass.cluster.providers.virtual.records import CloudFolder
from windlass.core import process
from windlass.core.errors import PreconditionError, Problem, UnreachableError
from windlass.core.files import is_locked

__all__ = ["SHUTDOWN", "NamespaceShell", "check_machine", "ensure_server", "is_over", "open_place"]

SHUTDOWN = "kill -TERM 1"
_START_S = 60.0
_STARTS = 3
_DIED = 3  # of the server, which is not imported here
_DYING_S = 1.0
_PROGRAMS = {"unshare": "util-linux", "nsenter": "util-linux", "mount": "mount", "ip": "iproute2"}
_OVERLAY = 'mount -t tmpfs t "$1" && mkdir "$1/u" "$1/w" && mount -t overlay o -o "lowerdir=$2,upperdir=$1/u,workdir=$1/w" "$1"'


def open_place(config: ClusterConfig, *, cluster: str, folder: Path, archive: Path) -> MachinePlace:
    """Return the place of a cluster's file; starts nothing until the first request."""
    assert config.place.virtual is not None
    cloud = CloudFolder((folder / "virtual").resolve())
    provider = VirtualProvider(
        cloud.access,
        prices=config.place.virtual.prices,
        start=lambda: ensure_server(cloud),
        checks=lambda: list(check_machine()),
        is_over=lambda: is_over(cloud),
    )

    def host(machine: Machine) -> NodeHost:
        return NodeHost(NamespaceShell(cloud, machine.id), cluster)

    return MachinePlace(
        provider=provider,
        host=host,
        shutdown=SHUTDOWN,
        metadata="virtual",
        close=provider.close,
        head_files=_AccessFile(cloud.access),
    )


class _AccessFile(Mapping[str, bytes]):
    """File with the server's address; read when it is asked for, since the server starts with the first request."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __getitem__(self, name: str) -> bytes:
        if name != self._path.name:
            raise KeyError(name)
        return self._path.read_bytes()

    def __iter__(self) -> Iterator[str]:
        return iter([self._path.name])

    def __len__(self) -> int:
        return 1


def is_over(folder: CloudFolder) -> bool:
    """Return whether a cloud has no server, and nothing that one should look after."""
    return not (is_locked(folder.lock) or folder.read().living or has_network(folder.path))


def ensure_server(folder: CloudFolder) -> None:
    """Start a folder's server unless one runs.

    Raises:
        PreconditionError: it did not start (`provider-failed`).
    """
    if is_locked(folder.lock):
        return
    source = str(Path(windlass.__file__).parents[1])
    environment = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": source,
        "PYTHONUNBUFFERED": "1",
    }
    argv = [sys.executable, "-m", "windlass.cluster.providers.virtual.server", str(folder.path)]
    for _ in range(_STARTS):
        done = process.run(argv, cwd=Path("/"), env=environment, timeout_s=_START_S)
        if done.code == 0:
            return
        if 0 < done.code != _DIED:
            break
    last = (done.stderr.strip().splitlines() or ["it was killed"])[-1]
    hint = f"cat {folder.log}"
    raise PreconditionError(f"the server of the virtual cluster: {last}", hint=hint, code="provider-failed")


def check_machine() -> Iterator[Problem]:
    """Yield what this machine lacks for virtual machines."""
    if os.geteuid() != 0:
        yield Problem(
            "virtual machines need root", "provider-refused", hint="run windlass as root: `sudo -E windlass ...`"
        )
        return
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    for program, package in _PROGRAMS.items():
        if shutil.which(program, path=path) is None:
            yield Problem(f"`{program}` is not installed", "program-missing", hint=f"apt-get install {package}")
            return
    with tempfile.TemporaryDirectory(prefix="windlass-virtual-") as folder:
        argv = [
            "unshare",
            "--net",
            "--uts",
            "--ipc",
            "--pid",
            "--fork",
            "--mount",
            "sh",
            "-c",
            _OVERLAY,
            "sh",
            folder,
            "/usr",
        ]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        message = f"this machine cannot make namespaces with an overlay: {last}"
        yield Problem(
            message, "provider-refused", hint="`modprobe overlay`; in a container, start it with --privileged"
        )


class NamespaceShell(TextShell):
    """Shell on a virtual machine, through its namespaces.

    Args:
        folder: the cloud's.
        machine: id of the machine.
    """

    is_local = False

    def __init__(self, folder: CloudFolder, machine: str) -> None:
        self._folder, self.name = folder, machine

    def run_bytes(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes | Path = b"",
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
    ) -> RawShellResult:
        """See `SiteShell.run_bytes`."""
        init, metadata = self._init()
        variables = {**environment_of(self.name, metadata), **(env or {})}
        inside = ["sh", "-c", 'cd "$HOME" && exec "$@"', "sh", *argv]
        argv_here = ["nsenter", "-t", str(init.pid), "-a", *inside]
        done = exchanged(self.name, argv_here, argv, stdin, variables, timeout_s, "try again later")
        if done.code and self._has_ended(init, is_killed=done.code < 0):
            raise self._unreachable("it ended meanwhile")
        return RawShellResult(done.code, done.out, done.err)

    def _has_ended(self, init: process.ProcessId, *, is_killed: bool) -> bool:
        """Return whether a machine ended; its other processes die a moment before its process 1."""
        end_s = time.monotonic() + (_DYING_S if is_killed else 0.0)
        while process.is_alive(init):
            if time.monotonic() >= end_s:
                return False
            time.sleep(0.01)
        return True

    def _init(self) -> tuple[process.ProcessId, str]:
        """Return the machine's process 1, and the address of the metadata."""
        records = self._folder.read()
        record = records.machines.get(self.name)
        if record is None or record.state != "running":
            raise self._unreachable("no such machine" if record is None else f"it is {record.state}")
        init = process.ProcessId.parse(record.init)
        if not process.is_alive(init):
            raise self._unreachable("it has ended")
        return init, f"{CloudNetwork(records.network or 0).address}:{records.port}"

    def _unreachable(self, why: str) -> UnreachableError:
        return UnreachableError(
            f"cannot reach {self.name}: {why}", hint="windlass cluster show", code="site-unreachable"
        )
