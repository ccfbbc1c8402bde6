"""`windlass.pyz ray`: one Ray cluster per attempt; the user's command runs on the head after all nodes have joined.

    replica 0:      start the head | all joined? -> become the user's command (RAY_ADDRESS is set)
    replica 1, ...: start a worker as soon as the head responds -> run until ended, or until its raylet ends

Ray's processes are always below the replica's supervisor, so the end of the attempt ends exactly these. `ray stop` is not
used, since it would end all of the user's Ray clusters on the machine.
"""

from __future__ import annotations

import hashlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from windlass.core.dataclass import dataclass
from windlass.core.json_text import decode_json
from windlass.core.process import identify, is_alive
from windlass.record.causes import Cause, cause_of
from windlass.supervise.launchers.ray_start import NODE_NAME, StartSpec
from windlass.supervise.launchers.wrapped import WrappedCommand, become
from windlass.supervise.logs.ray_logs import RAY_FOLDER
from windlass.supervise.replica.exit_report import log_line, report_end
from windlass.supervise.replica.scratch import host_addresses

__all__ = ["RayPlace", "count_cpus", "ray_main"]

_JOIN_TIMEOUT_S = 600.0
_AFTER_HEAD_S = 15.0
"""Extra time beyond the head's limit, so that the head, which knows the missing nodes, gives up first."""

_WATCH_S = 0.5
_NUM_STARTS = 3
_TOO_SLOW = "timed out during startup"
"""Ray's message for a node whose raylet gave up, or was not seen in time."""


def ray_main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one replica of a task with `cluster: ray`; on rank 0, become the user's command."""
    wrapped = WrappedCommand.parse(arguments)
    place = RayPlace.read(wrapped, environ)
    timeout_s = wrapped.number("join-timeout", _JOIN_TIMEOUT_S)
    variables = place.variables(wrapped.worker.apply(environ))
    python = shutil.which("python", path=environ.get("PATH")) or shutil.which("python3", path=environ.get("PATH"))
    if python is None:
        return report_end(environ, Cause.SETUP_FAILED, "no `python` on the PATH of the task, so Ray cannot start")
    place.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    events = _start_node(python, place, variables)
    if place.rank:
        return _serve(place, events, timeout_s + _AFTER_HEAD_S, environ, lambda: _start_node(python, place, variables))
    problem = _gather(place, events, timeout_s, environ)
    if problem:
        return problem
    driver = place.variables(wrapped.driver.apply(environ))
    return become(wrapped.command, {**driver, "RAY_ADDRESS": place.head})


def _gather(place: RayPlace, events: _Events, timeout_s: float, environ: Mapping[str, str]) -> int:
    """Wait until every node has joined with the planned GPUs; return 0, or the code to exit with."""
    began = time.monotonic()
    nodes: dict[int, list[float]] = {}
    for event in events.until(began + timeout_s):
        if "error" in event:
            return _explain(place, event, environ)
        if "nodes" in event:
            nodes = {int(rank): counts for rank, counts in event["nodes"].items()}
        short = _short_of(place, nodes)
        if short:
            return report_end(environ, Cause.NODE_UNHEALTHY, short)
        if len(nodes) == place.num_nodes:
            took_s = time.monotonic() - began
            gpus, cpus = (sum(counts[kind] for counts in nodes.values()) for kind in (0, 1))
            count = "1 node" if place.is_alone else f"{place.num_nodes} nodes"
            log_line(f"Ray is up at {place.head} after {took_s:.1f} s: {count}, {gpus:g} GPUs, {cpus:g} CPUs")
            return 0
    if events.is_closed:
        return report_end(environ, Cause.START_FAILED, f"Ray's head did not start: {_last_output(place)}")
    missing = ", ".join(place.name(rank) for rank in range(place.num_nodes) if rank not in nodes)
    there = ", ".join(place.name(rank) for rank in sorted(nodes)) or "none"
    message = f"{len(nodes)} of {place.num_nodes} nodes joined Ray within {timeout_s:g} s; missing: {missing}"
    return report_end(environ, Cause.NEVER_READY, f"{message}; joined: {there}")


def _short_of(place: RayPlace, nodes: Mapping[int, Sequence[float]]) -> str:
    """Describe the first node that has fewer GPUs than planned; "" if there is none."""
    for rank, (gpus, _) in sorted(nodes.items()):
        if gpus < place.num_gpus:
            return f"{place.name(rank)} joined Ray with {gpus:g} of {place.num_gpus} GPUs"
    return ""


def _serve(
    place: RayPlace, events: _Events, timeout_s: float, environ: Mapping[str, str], again: Callable[[], _Events]
) -> int:
    """Run a worker, which has nothing to save, until the supervisor ends it or its raylet ends.

    A raylet gives up after some seconds if its helpers start slowly, as on a busy machine; `again` restarts it.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deadline, num_left = time.monotonic() + timeout_s, _NUM_STARTS - 1
    for event in events.until(deadline):
        if "error" in event and _TOO_SLOW in event["error"] and num_left > 0:
            log_line(f"{place.name(place.rank)}: {event['error']}; starting it again")
            num_left -= 1
            events.follow(again())
            continue
        if "error" in event:
            return _explain(place, event, environ)
        if "started" in event:
            log_line(f"{place.name(place.rank)} serves Ray at {place.head}")
            return _watch(place, event["started"], environ)
    if events.is_closed:
        message = f"{place.name(place.rank)} could not join Ray: {_last_output(place)}"
        return report_end(environ, Cause.START_FAILED, message)
    message = f"{place.name(place.rank)} found no Ray head at {place.head} within {timeout_s:g} s"
    return report_end(environ, Cause.NEVER_READY, message)


def _watch(place: RayPlace, raylets: Sequence[int], environ: Mapping[str, str]) -> int:
    processes = [identify(pid) for pid in raylets]
    while processes and all(process is not None and is_alive(process) for process in processes):
        time.sleep(_WATCH_S)
    message = f"the raylet of {place.name(place.rank)} ended while the head was running"
    return report_end(environ, Cause.KILLED, message)


def _explain(place: RayPlace, event: Mapping[str, Any], environ: Mapping[str, str]) -> int:
    cause = cause_of(str(event.get("cause", "")), Cause.START_FAILED)
    message = f"{place.name(place.rank)}: {event['error']}"
    if cause is Cause.SETUP_FAILED:
        message += " in the environment of the task; add `ray` to it"
    else:
        log_line(_last_output(place))
    return report_end(environ, cause, message)


def _last_output(place: RayPlace) -> str:
    """Return the last lines that `ray start` printed."""
    try:
        lines = (place.folder / "start.log").read_text(errors="replace").strip().splitlines()
    except OSError:
        return "no output"
    return " | ".join(line.strip() for line in lines[-5:]) or "no output"


class _Events:
    """Stream of events from the process that starts Ray."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._received = b""
        self.is_closed = False

    def follow(self, other: _Events) -> None:
        """Read from another process from now on, and discard later events of the current one."""
        os.close(self._fd)
        self._fd, self._received, self.is_closed = other._fd, b"", False

    def until(self, deadline: float) -> Iterator[dict[str, Any]]:
        """Yield events until a deadline on the monotonic clock, or until the sender is gone."""
        while not self.is_closed:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            wait_s = deadline - time.monotonic()
            if wait_s <= 0 or not poll.poll(wait_s * 1000):
                return
            piece = os.read(self._fd, 65536)
            self.is_closed = not piece
            *lines, self._received = (self._received + piece).split(b"\n")
            for line in lines:
                yield decode_json(line)


def _start_node(python: str, place: RayPlace, environ: Mapping[str, str]) -> _Events:
    """Start Ray in the user's Python, detached, so that it is not a child of the user's command."""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    spec = StartSpec(place.rank, place.head, place.options(), place.num_nodes, write)
    argv = [python, os.path.abspath(sys.argv[0]), "ray-start", spec.to_text()]
    child = os.fork()
    if child == 0:
        try:
            if os.fork() == 0:
                _become_starter(argv, environ, place.folder / "start.log")
        finally:
            os._exit(127)
    os.waitpid(child, 0)
    os.close(write)
    return _Events(read)


def _become_starter(argv: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
    output = os.open(str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.execve(argv[0], list(argv), dict(environ))


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
