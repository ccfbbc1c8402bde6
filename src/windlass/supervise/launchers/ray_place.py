"""Settings of an attempt's Ray cluster on one node: addresses, counts, the token, and options for `ray start`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.supervise.launchers.ray_start import NODE_NAME
from windlass.supervise.launchers.wrapped import WrappedCommand
from windlass.supervise.logs.ray_logs import RAY_FOLDER
from windlass.supervise.replica.scratch import host_addresses

__all__ = ["RayPlace", "count_cpus"]

_NO_NETWORK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With `0` Ray keeps 127.0.0.1 and does not replace it with this machine's network address."""

_SHARE_OF_STORE = 0.3
_MIN_STORE_BYTES = 80 << 20


@dataclass(frozen=True)
class RayPlace:
    """Settings of one node in an attempt's Ray cluster.

    Attributes:
        folder: folder of Ray's sockets, logs and spilled objects, on this node's disk.
        hosts: (name, address) of all replicas by rank; empty if unknown.
        memory_bytes: memory for this node; if 0, Ray decides.
    """

    rank: int
    num_nodes: int
    address: str
    port: int
    folder: Path
    num_gpus: int = 0
    num_cpus: int = 1
    memory_bytes: int = 0
    hosts: tuple[tuple[str, str], ...] = ()
    token: str = ""

    @classmethod
    def read(cls, wrapped: WrappedCommand, environ: Mapping[str, str]) -> RayPlace:
        """Read a replica's command line and variables; counts that the plan lacks come from the job."""
        rank = int(environ["WINDLASS_RANK"])
        hosts = tuple(host_addresses(environ.get("WINDLASS_HOSTS", "")))
        num_here = sum(address == hosts[rank][1] for _, address in hosts) if hosts else 1
        secret = f"windlass ray {environ['WINDLASS_TOKEN'].rpartition('.')[0]} {environ['WINDLASS_ATTEMPT']}"
        return cls(
            rank=rank,
            num_nodes=int(environ["WINDLASS_NUM_REPLICAS"]),
            address=environ["WINDLASS_LEADER_ADDRESS"],
            port=int(environ["WINDLASS_LEADER_PORT"]),
            folder=Path(wrapped.options["scratch"]),
            num_gpus=int(wrapped.number("num-gpus")),
            num_cpus=int(wrapped.number("num-cpus")) or count_cpus(environ, num_here),
            memory_bytes=int(wrapped.number("memory")) or (_free_memory() // num_here if num_here > 1 else 0),
            hosts=hosts,
            token=hashlib.sha256(secret.encode()).hexdigest(),
        )

    @property
    def is_alone(self) -> bool:
        """Return whether there is only one node, so that no network address is needed."""
        return self.num_nodes == 1

    @property
    def head(self) -> str:
        """Return the RAY_ADDRESS for the driver; Ray would replace 127.0.0.1 with the machine's network address."""
        if self.is_alone:
            return f"127.0.0.1:{self.port}"
        return f"{_loopback(0) if self.address.startswith('127.') else self.address}:{self.port}"

    @property
    def own_address(self) -> str:
        """Return this node's address; replicas on one machine get loopback addresses from 127.0.0.2 up."""
        if self.is_alone:
            return "127.0.0.1"
        if self.address.startswith("127."):
            return _loopback(self.rank)
        if self.hosts:
            return self.hosts[self.rank][1]
        return self.address if self.rank == 0 else ""

    def name(self, rank: int) -> str:
        """Return a replica's name for use in messages."""
        host = self.hosts[rank][0] if rank < len(self.hosts) else ""
        return f"replica {rank} ({host})" if host else f"replica {rank}"

    def options(self) -> tuple[str, ...]:
        """Return the options for `ray start`: planned counts, a private folder, and only the required ports."""
        found = [
            f"--node-name={NODE_NAME}{self.rank}",
            f"--temp-dir={self.folder / RAY_FOLDER}",
            f"--num-cpus={self.num_cpus}",
            f"--num-gpus={self.num_gpus}",
            "--disable-usage-stats",
        ]
        if self.own_address:
            found.append(f"--node-ip-address={self.own_address}")
        if self.memory_bytes:
            store = max(_MIN_STORE_BYTES, min(int(self.memory_bytes * _SHARE_OF_STORE), _free_shared_memory()))
            found += [f"--object-store-memory={store}", f"--memory={max(self.memory_bytes - store, _MIN_STORE_BYTES)}"]
        if self.rank == 0:
            found += [f"--port={self.port}", "--include-dashboard=false", "--no-monitor"]
        return tuple(found)

    def variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for every process of this Ray cluster; the user's settings take precedence.

        Every user of the network can connect to Ray's ports, so all processes authenticate with a token.
        """
        ours = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "token", **environ}
        if self.is_alone:
            ours[_NO_NETWORK] = "0"
        if ours["RAY_AUTH_MODE"].lower() == "token" and "RAY_AUTH_TOKEN_PATH" not in ours:
            ours.setdefault("RAY_AUTH_TOKEN", self.token)
        return {name: value for name, value in ours.items() if name != "RAY_ADDRESS"}


def _loopback(rank: int) -> str:
    return f"127.0.{rank // 250}.{rank % 250 + 2}"


def count_cpus(environ: Mapping[str, str], num_here: int) -> int:
    """Return this replica's CPU count if the plan has none: its share of the CPUs allocated on this machine."""
    stated = environ.get("SLURM_CPUS_ON_NODE", "")
    total = int(stated) if stated.isdecimal() else len(os.sched_getaffinity(0))
    return max(1, total // num_here)


def _free_memory() -> int:
    text = Path("/proc/meminfo").read_text()
    found = next(line for line in text.splitlines() if line.startswith("MemAvailable:"))
    return int(found.split()[1]) * 1024


def _free_shared_memory() -> int:
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108 - only checked
    except OSError:
        return _MIN_STORE_BYTES
    return int(found.f_bavail * found.f_frsize * 0.9)
