"""Interfaces through which a supervisor and its leader use the system: clock, processes, network, disk, scheduler.

`replica.machine` implements them on Linux. The simulation in tests/sim implements them in virtual time, so that it
runs the shipped supervisor and leader, not a copy of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable, Protocol

from windlass.core.dataclass import dataclass
from windlass.supervise.gang.messages import Journal, Order, ReplicaStatus, WriteControl

if TYPE_CHECKING:
    from windlass.core.clock import Clock
    from windlass.record.frames import Record
    from windlass.record.state import End
    from windlass.supervise.chain.links import LinkManager
    from windlass.supervise.fencing.fence import FenceDecision
    from windlass.supervise.gang.election import Claims, Leadership

__all__ = ["Disk", "LeaderEnd", "Network", "Ports", "Processes", "ReplicaEnd", "UserCode"]


class UserCode(Protocol):
    """User's process in one attempt of one replica, with everything that it starts."""

    @property
    def is_blocked(self) -> bool:
        """Return whether the log cannot be written because the disk is full."""

    def open_gate(self) -> str:
        """Let the process execute its command; return why it could not, or ""."""

    def has_exited(self) -> bool:
        """Return whether the root process has ended."""

    def terminate(self) -> None:
        """Send SIGTERM to the user's process."""

    def insist(self) -> None:
        """Repeat the SIGTERM for processes that did not get it yet."""

    def kill(self, keep: Callable[[], set[int]]) -> Sequence[int]:
        """Kill the process and everything that it started, except `keep`; return the pids of those still alive."""

    def pump(self) -> bool:
        """Move the output to the log; return False while the disk is full."""

    def trouble(self, now: float, keep: Callable[[], set[int]]) -> End | None:
        """Return how the process ends if it must end now: too much memory, or a disk that stays full.

        `keep` is as in `kill`.
        """

    def stopped_by_signal(self) -> bool:
        """Return whether the root process is stopped (SIGSTOP)."""

    def end(self, *, finish: tuple[int, str, str] | None, stop_cause: str) -> End:
        """Classify how the process ended; everything that it started must be gone."""


class Processes(Protocol):
    """A replica's processes on its machine: user code, guard, and other replicas that it started there.

    Attributes:
        host: name of the machine.
        address: where other replicas reach this one.
        secret_problem: why the secrets of the job are missing; empty if they are not.
    """

    host: str
    address: str
    secret_problem: str

    @property
    def holder(self) -> str:
        """Return the identity under which the replica holds its leases."""

    def unfit(self) -> str:
        """Return a problem with the machine, or ""."""

    def decision(self) -> FenceDecision:
        """Return the newest decision of the fencing agent; the initial one without an agent."""

    def spawn(self, attempt: int, order: Order) -> tuple[UserCode, str, list[str]]:
        """Fork the user's process behind its gate; return the process, its identity and the user's command.

        Raises:
            AccessError: secrets of the job are missing.
            OSError: the system cannot start it.
        """

    def adopt(self, attempt: int, identity: str) -> tuple[UserCode, bool]:
        """Take over the process that an earlier supervisor started.

        Return it, and whether it is below the same guard.
        """

    def sweep(self, identities: Sequence[str]) -> None:
        """Kill what an earlier guard and supervisor left behind; `identities` are the root processes they recorded."""

    def clear_scratch(self, attempt: int) -> str:
        """Save logs from this machine's own disk and remove the rest; return why that failed, or ""."""

    def request(self, command: WriteControl) -> str:
        """Pass a request to the user's code; return why that failed, or ""."""

    def redact(self, text: str) -> str:
        """Return the text without the job's secrets."""

    def watch_output(self, on_output: Callable[[], None] | None) -> None:
        """Call `on_output` when there is output to read; None stops watching."""

    def others(self) -> set[int]:
        """Return the pids of other replicas and of the fencing agent on this machine."""

    def is_gone(self, rank: int) -> bool:
        """Return whether a replica's guard and supervisor are known to be dead."""

    def killed_replica(self, rank: int) -> str:
        """Describe the processes of a dead replica; "" if they were not killed."""

    def start_replica(self, rank: int) -> str:
        """Start a missing replica; return why an earlier start failed, or ""."""

    def stop_starting(self) -> None:
        """Release the resources that `start_replica` uses; started replicas continue. Idempotent."""

    @property
    def helpers(self) -> set[int]:
        """Return the pids of the helper processes of `start_replica`."""

    def close(self) -> None:
        """Remove the replica's private files on this machine."""


class ReplicaEnd(Protocol):
    """Replica's side of the connection to its leader."""

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection to a leader."""

    def connect(self, address: str, port: int) -> bool:
        """Try to reach the leader; return `is_connected`."""

    def send(self, status: ReplicaStatus) -> None:
        """Send the newest status; it is sent again after a reconnect."""

    def close(self) -> None:
        """Close the connection, if any."""


class LeaderEnd(Protocol):
    """Leader's side of the connections to the replicas.

    Attributes:
        port: port of the leader's socket.
    """

    port: int

    def send(self, order: Order) -> None:
        """Send this order to every replica, and to those that connect later."""

    def tick(self) -> None:
        """Close connections whose handshake timed out."""

    def close(self) -> None:
        """Close all connections and the port."""


class Network(Protocol):
    """Connections of one replica."""

    def as_replica(self, on_order: Callable[[Order], None]) -> ReplicaEnd:
        """Return the replica's side of the connection."""

    def as_leader(self, on_status: Callable[[ReplicaStatus], None], on_lost: Callable[[int], None]) -> LeaderEnd:
        """Return the leader's side; `on_lost` is called with the rank of a disconnected replica."""

    def free_port(self) -> int:
        """Return a port that is free on this machine now."""


class Disk(Protocol):
    """Files that all replicas of a job share."""

    def open_journal(self, on_record: Callable[[Record], None]) -> Journal:
        """Open this replica's journal; `on_record` receives each of its later records."""

    def claims(self) -> Claims:
        """Read the claims to lead the job."""

    def publish_claim(self, leadership: Leadership) -> bool:
        """Claim an epoch; return False if another replica already has."""


@dataclass(frozen=True)
class Ports:
    """All interfaces of one replica to the system.

    Attributes:
        make_links: returns the manager of the chain that the job is a link of, or None; takes the journal and a function
            that is called when a reply from the scheduler has arrived.
    """

    clock: Clock
    processes: Processes
    network: Network
    disk: Disk
    make_links: Callable[[Journal, Callable[[], None]], LinkManager | None]
