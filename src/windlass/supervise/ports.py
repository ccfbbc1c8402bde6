"""What a supervisor and its leader need of the world around them: clock, processes, network, disk, scheduler.

`replica.machine` implements these on Linux. The simulation in tests/sim implements them in virtual time, so that it
drives the shipped supervisor and leader and no copy of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Callable, Protocol

from windlass.core.dataclass import dataclass
from windlass.supervise.gang.messages import JournalView, Order, ReplicaStatus, WriteControl

if TYPE_CHECKING:
    from windlass.core.clock import Clock
    from windlass.record.frames import Record
    from windlass.record.state import End, RunFacts
    from windlass.supervise.chain.links import LinkManager
    from windlass.supervise.fencing.fence import FenceDecision
    from windlass.supervise.gang.election import Claims, Leadership

__all__ = ["Disk", "Journal", "LeaderEnd", "Network", "Ports", "Processes", "ReplicaEnd", "UserCode"]


class UserCode(Protocol):
    """The user's process of one replica in one attempt, with everything it starts."""

    @property
    def is_blocked(self) -> bool:
        """Whether its log cannot be written because the disk is full."""

    def open_gate(self) -> str:
        """Let it execute; returns why it could not, or an empty string."""

    def has_exited(self) -> bool:
        """Whether its root process is gone."""

    def terminate(self) -> None:
        """Ask it to end: SIGTERM."""

    def insist(self) -> None:
        """Ask again, some time after `terminate`, what did not get the signal then."""

    def kill(self, keep: Callable[[], set[int]]) -> Sequence[int]:
        """End it and everything it started, but not the processes of `keep`; returns the ids of what still lives."""

    def pump(self) -> bool:
        """Bring its output into the log; False while the disk is full."""

    def trouble(self, now: float, keep: Callable[[], set[int]]) -> End | None:
        """What must end it now: too much memory, a disk that stays full. `keep` as for `kill`."""

    def stopped_by_signal(self) -> bool:
        """Whether its root process is stopped (SIGSTOP)."""

    def end(self, *, finish: tuple[int, str, str] | None, stop_cause: str) -> End:
        """Name the cause of its end; everything of it must be gone."""


class Processes(Protocol):
    """The machine of one replica: its user code, its guard, and the other replicas that were started there.

    Attributes:
        host: name of the machine.
        address: where other replicas reach this one.
        secret_problem: why the secrets of the job are missing; empty when they are not.
    """

    host: str
    address: str
    secret_problem: str

    @property
    def holder(self) -> str:
        """Identity under which the replica holds leases."""

    def unfit(self) -> str:
        """What is wrong with the machine; empty when nothing is."""

    def decision(self) -> FenceDecision:
        """The newest decision of the fencing agent; that nothing is fenced where there is none."""

    def spawn(self, attempt: int, order: Order) -> tuple[UserCode, str, list[str]]:
        """Fork the user's process behind its gate; returns it, its identity and the command in the user's words.

        Raises:
            AccessError: secrets of the job are missing.
            OSError: the system cannot start it.
        """

    def adopt(self, attempt: int, identity: str) -> tuple[UserCode, bool]:
        """Take over what an earlier supervisor started; returns also whether it lives below the same guard."""

    def sweep(self, identities: Sequence[str]) -> None:
        """End what an earlier guard and supervisor of this replica left; `identities` are its known root processes."""

    def clear_scratch(self, attempt: int) -> str:
        """Keep the logs on this machine's own disk and remove the rest there; returns why that failed, or nothing."""

    def request(self, command: WriteControl) -> str:
        """Give the user's code a request; returns why that cannot be done, or an empty string."""

    def redact(self, text: str) -> str:
        """The text without the job's secrets."""

    def watch_output(self, on_output: Callable[[], None] | None) -> None:
        """Call `on_output` when there is output to take; None: do not."""

    def others(self) -> set[int]:
        """Process ids on this machine of other replicas and of the fencing agent."""

    def is_gone(self, rank: int) -> bool:
        """Whether it is known that neither guard nor supervisor of a replica lives on this machine."""

    def killed_replica(self, rank: int) -> str:
        """The processes of a replica that is gone, in words; empty where nobody killed them."""

    def start_replica(self, rank: int) -> str:
        """Start a replica that is gone; returns why an earlier one could not be started, or an empty string."""

    def stop_starting(self) -> None:
        """Let go of what `start_replica` needs; the replicas live on. Idempotent."""

    @property
    def helpers(self) -> set[int]:
        """Ids of the processes that `start_replica` needs."""

    def close(self) -> None:
        """Remove what the replica left on the machine."""


class ReplicaEnd(Protocol):
    """A replica's end of the connection to its leader."""

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to a leader."""

    def connect(self, address: str, port: int) -> bool:
        """Try to reach the leader, and `is_connected`."""

    def send(self, status: ReplicaStatus) -> None:
        """Send the newest status; a later connection sends it again."""

    def close(self) -> None:
        """Close the connection, if there is one."""


class LeaderEnd(Protocol):
    """The leader's end of the connections to the replicas.

    Attributes:
        port: where replicas connect.
    """

    port: int

    def send(self, order: Order) -> None:
        """Give this order to every replica, and to those that connect later."""

    def tick(self) -> None:
        """Close connections whose time to prove themselves is over."""

    def close(self) -> None:
        """Close all connections and the port."""


class Network(Protocol):
    """The connections of one replica."""

    def as_replica(self, on_order: Callable[[Order], None]) -> ReplicaEnd:
        """The end that follows a leader."""

    def as_leader(self, on_status: Callable[[ReplicaStatus], None], on_lost: Callable[[int], None]) -> LeaderEnd:
        """The end that leads; `on_lost` is called with the rank of a replica that has no connection any more."""

    def free_port(self) -> int:
        """A port that is free on this machine now."""


class Journal(JournalView, Protocol):
    """The run's journal as one replica reads and writes it.

    Attributes:
        facts: what has been read.
        history: records that were there when it was opened.
    """

    facts: RunFacts
    history: list[Record]

    def poll(self) -> None:
        """Read what was appended by anybody."""

    def widen(self) -> None:
        """Read the whole run from now on. Idempotent."""

    def narrow(self) -> None:
        """Read only what this replica writes. Idempotent."""

    def close(self) -> None:
        """Close the file that is written."""


class Disk(Protocol):
    """The files that all replicas of a job share."""

    def open_journal(self, on_record: Callable[[Record], None]) -> Journal:
        """Open this replica's journal; `on_record` sees each record of this replica that arrives from now on."""

    def claims(self) -> Claims:
        """Read who leads and who led."""

    def publish_claim(self, leadership: Leadership) -> bool:
        """Claim an epoch; False when another replica already has."""


@dataclass(frozen=True)
class Ports:
    """All of them, for one replica.

    Attributes:
        make_links: the chain that the job is a link of, on behalf of a leader that is called again when an answer of
            the scheduler arrived; None where the job is no link.
    """

    clock: Clock
    processes: Processes
    network: Network
    disk: Disk
    make_links: Callable[[Journal, Callable[[], None]], LinkManager | None]
