"""Where one Ray of one attempt is: addresses, counts, its token, and the options of `ray start`. Pure but for counts."""

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
"""`0`: 127.0.0.1 is 127.0.0.1 for Ray, and not this machine's address in the network."""

_SHARE_OF_STORE = 0.3
_MIN_STORE_BYTES = 80 << 20


@dataclass(frozen=True)
class RayPlace:
    """One node of the Ray of an attempt.

    Attributes:
        folder: Ray's sockets, logs and spilled objects, on this node's own disk.
        hosts: (name, address) of all replicas by rank; empty when nobody knows them.
        memory_bytes: what this node may use; 0: Ray decides.
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
        """What the command line and the variables of a replica say; a count the plan does not know is the job's."""
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
        """Whether there is one node, so that nothing needs the network."""
        return self.num_nodes == 1

    @property
    def head(self) -> str:
        """What RAY_ADDRESS is for the driver; for 127.0.0.1, Ray would take the machine's address in the network."""
        if self.is_alone:
            return f"127.0.0.1:{self.port}"
        return f"{_loopback(0) if self.address.startswith('127.') else self.address}:{self.port}"

    @property
    def own_address(self) -> str:
        """This node's address; on one machine each gets its own of the loopback, 127.0.0.2 and up."""
        if self.is_alone:
            return "127.0.0.1"
        if self.address.startswith("127."):
            return _loopback(self.rank)
        if self.hosts:
            return self.hosts[self.rank][1]
        return self.address if self.rank == 0 else ""

    def name(self, rank: int) -> str:
        """A replica as people know it."""
        host = self.hosts[rank][0] if rank < len(self.hosts) else ""
        return f"replica {rank} ({host})" if host else f"replica {rank}"

    def options(self) -> tuple[str, ...]:
        """For `ray start`: counts as planned, a folder of its own, and no port but those Ray cannot do without."""
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
        """What every process of this Ray needs; what the user said stays.

        Ray's ports are open to every user of the network, so all of its processes prove themselves with a token.
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
    """CPUs that the job gave this replica, where the plan does not say: those of its allocation, shared by the
    replicas on this machine.
    """
    stated = environ.get("SLURM_CPUS_ON_NODE", "")
    total = int(stated) if stated.isdecimal() else len(os.sched_getaffinity(0))
    return max(1, total // num_here)


def _free_memory() -> int:
    text = Path("/proc/meminfo").read_text()
    found = next(line for line in text.splitlines() if line.startswith("MemAvailable:"))
    return int(found.split()[1]) * 1024


def _free_shared_memory() -> int:
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108 - only looked at
    except OSError:
        return _MIN_STORE_BYTES
    return int(found.f_bavail * found.f_frsize * 0.9)
