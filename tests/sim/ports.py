"""The ports of the shipped supervisor and leader in virtual time: processes, network, disk and chain of one replica."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.sim.disk import Crash, VirtualJournalView
from tests.sim.network import Connection
from tests.sim.process import VirtualProcess
from tests.sim.site.job import SiteJob
from windlass.record.causes import Cause
from windlass.record.frames import Record
from windlass.record.state import End
from windlass.supervise.chain.links import LinkManager
from windlass.supervise.fencing.fence import FenceDecision
from windlass.supervise.gang.election import Claims, Leadership
from windlass.supervise.gang.messages import Journal, Order, ReplicaStatus, WriteControl
from windlass.supervise.ports import Ports
from windlass.supervise.replica.classify import Evidence, classify

if TYPE_CHECKING:
    from tests.sim.supervisor import VirtualSupervisor

__all__ = ["VirtualDisk", "VirtualLeaderEnd", "VirtualNetwork", "VirtualProcesses", "VirtualReplicaEnd", "ports_of"]

_LINGER_S = 0.05
_PORT = 29500


class VirtualUserCode:
    """The user's process of one replica as its supervisor sees it; see `ports.UserCode`."""

    is_blocked = False

    def __init__(self, supervisor: VirtualSupervisor, process: VirtualProcess | None) -> None:
        self._supervisor, self.process = supervisor, process
        self._problem = ""

    def open_gate(self) -> str:
        """Now, or when the record of the process is on the disk, which its supervisor waits for."""
        supervisor, delay_s = self._supervisor, self._supervisor.writer.delay_s
        if not delay_s:
            return self._open()
        supervisor.world.at(delay_s, supervisor.enter, self._open)
        supervisor.writer.delay_s = max(0.0, delay_s - 0.001)
        return ""

    def _open(self) -> str:
        assert self.process is not None
        if self.process.is_alive:
            self._problem = self.process.open_gate()
        return self._problem

    def has_exited(self) -> bool:
        """It is dead, or nobody knows it."""
        return self.process is None or not self.process.is_alive

    def terminate(self) -> None:
        """SIGTERM."""
        if self.process is not None:
            self.process.terminate()

    def insist(self) -> None:
        """It is no shell."""

    def kill(self, keep: Callable[[], set[int]]) -> Sequence[int]:
        """SIGKILL to the process, and to what it started as far as it is below the same guard."""
        guard = self._supervisor.guard
        if self.process is not None and self.process in guard.children:
            self.process.kill_tree()
        elif self.process is not None:
            self.process.kill()
        if not guard.is_alive:
            self._supervisor.processes.sweep(())
        return ()

    def pump(self) -> bool:
        """It prints nothing."""
        return True

    def trouble(self, now: float, keep: Callable[[], set[int]]) -> End | None:
        """It needs neither memory nor room."""
        return None

    def stopped_by_signal(self) -> bool:
        """Only its fencing agent stops it."""
        return False

    def end(self, *, finish: tuple[int, str, str] | None, stop_cause: str) -> End:
        """Its end by the shipped judgement; the code of one whose guard is gone is not known."""
        supervisor, code, fenced = self._supervisor, -int(signal.SIGKILL), ""
        rank, host, at = supervisor.rank, supervisor.node.name, supervisor.clock.now()
        if self._problem:
            return End(str(Cause.START_FAILED), 127, rank, host, self._problem, at=at)
        if self.process is not None:
            if self.process in supervisor.guard.children:
                assert self.process.code is not None
                code = self.process.code
            boot_s = supervisor.clock.monotonic() - supervisor.world.now
            fenced = supervisor.guard.decision().why_killed(self.process.started_at + boot_s)
        return classify(code, Evidence(stop_cause, fenced, finish), rank=rank, host=host, at=at)


class VirtualProcesses:
    """A virtual machine as one of its replicas sees it; see `ports.Processes`."""

    holder = secret_problem = ""

    def __init__(self, supervisor: VirtualSupervisor) -> None:
        self._supervisor, self._cluster, self._job = supervisor, supervisor.cluster, supervisor.job
        self.host, self.address = supervisor.node.name, supervisor.node.address
        self._code: VirtualUserCode | None = None

    @property
    def gated(self) -> VirtualProcess | None:
        """The process that waits behind its gate, which the end of its supervisor ends."""
        process = self._code.process if self._code is not None else None
        return process if process is not None and process.is_gated else None

    def unfit(self) -> str:
        """All machines are fit."""
        return ""

    def decision(self) -> FenceDecision:
        """Of the virtual fencing agent."""
        return self._supervisor.guard.decision()

    def spawn(self, attempt: int, order: Order) -> tuple[VirtualUserCode, str, list[str]]:
        """Add a process to the table of all."""
        supervisor = self._supervisor
        process = VirtualProcess(
            self._cluster.processes,
            task=self._job.task,
            token=self._job.token,
            job=self._job.number,
            attempt=attempt,
            rank=supervisor.rank,
            node=supervisor.node,
        )
        process.incarnation = supervisor.incarnation.name
        self._cluster.processes.add(process)
        supervisor.guard.children.append(process)
        process.on_exit = lambda: supervisor.signal(signal.SIGCHLD)
        self._code = VirtualUserCode(supervisor, process)
        return self._code, process.identity, ["python", "train.py"]

    def adopt(self, attempt: int, identity: str) -> tuple[VirtualUserCode, bool]:
        """The process lives on below the same guard, which is told of its end."""
        process = self._cluster.processes.find(identity)
        self._code = VirtualUserCode(self._supervisor, process)
        is_ours = process is not None and process.is_alive and process in self._supervisor.guard.children
        if process is not None and is_ours:
            process.on_exit = None
        return self._code, is_ours

    def sweep(self, identities: Sequence[str]) -> None:
        """Kill what carries the token of the job on this machine."""
        supervisor = self._supervisor
        for process in self._cluster.processes.of(self._job.token, supervisor.rank, supervisor.node):
            process.kill()

    def clear_scratch(self, attempt: int) -> str:
        """Nothing is there."""
        return ""

    def request(self, command: WriteControl) -> str:
        """Write the control file."""
        process = self._code.process if self._code is not None else None
        if command.is_stop_wanted and process is not None:
            process.ask()
        return ""

    def redact(self, text: str) -> str:
        """There are no secrets."""
        return text

    def watch_output(self, on_output: Callable[[], None] | None) -> None:
        """There is no output."""

    def others(self) -> set[int]:
        """Only virtual ones."""
        return set()

    def is_gone(self, rank: int) -> bool:
        """Known of replicas of the one machine there is."""
        return self._cluster.is_gone(self._job.folder, rank)

    def killed_replica(self, rank: int) -> str:
        """Nobody killed one whose guard gave up, or never began."""
        guard = self._cluster.guards.get((self._job.folder, rank))
        is_killed = guard is not None and not guard.has_given_up
        return f"guard and supervisor of replica {rank}" if is_killed else ""

    def start_replica(self, rank: int) -> str:
        """Start its guard, unless it lives."""
        self._job.start_replica(rank)
        return ""

    def stop_starting(self) -> None:
        """Nothing is needed for it."""

    @property
    def helpers(self) -> set[int]:
        """As above."""
        return set()

    def close(self) -> None:
        """Nothing is left."""


class VirtualReplicaEnd:
    """A replica's end over the virtual network; see `ports.ReplicaEnd`."""

    def __init__(self, supervisor: VirtualSupervisor, on_order: Callable[[Order], None]) -> None:
        self._supervisor, self._network, self.on_order = supervisor, supervisor.cluster.network, on_order
        self.connection: Connection | None = None
        self._status: ReplicaStatus | None = None

    @property
    def is_connected(self) -> bool:
        """Until the end of the connection is noticed."""
        return self.connection is not None

    def connect(self, address: str, port: int) -> bool:
        """Both ends prove themselves at once; the status follows."""
        self.close()
        self.connection = self._network.connect(self._supervisor, address, port, self._supervisor.rank)
        if self.connection is not None and self._status is not None:
            self.send(self._status)
        return self.is_connected

    def send(self, status: ReplicaStatus) -> None:
        """Later by as long as its supervisor hangs in a write."""
        self._status = status
        if self.connection is not None:
            self._network.send_status(self.connection, status, self._supervisor.lag_s)

    def close(self) -> None:
        """Break the connection."""
        if self.connection is not None:
            connection, self.connection = self.connection, None
            self._supervisor.world.at(_LINGER_S, self._network.break_off, connection)


class VirtualLeaderEnd:
    """The leader's end over the virtual network; see `ports.LeaderEnd`."""

    def __init__(
        self, supervisor: VirtualSupervisor, on_status: Callable[[ReplicaStatus], None], on_lost: Callable[[int], None]
    ) -> None:
        self._supervisor, self._network = supervisor, supervisor.cluster.network
        self.on_status, self._on_lost = on_status, on_lost
        self.port = self._network.listen(supervisor)
        self._connections: list[Connection] = []
        self._order: Order | None = None

    def admit(self, connection: Connection) -> None:
        """A replica connected: it gets the newest order."""
        self._connections.append(connection)
        if self._order is not None:
            self._network.send_order(connection, self._order, self._supervisor.lag_s)

    def send(self, order: Order) -> None:
        """To all that are connected, later by as long as its supervisor hangs in a write."""
        self._order = order
        for connection in self._connections:
            self._network.send_order(connection, order, self._supervisor.lag_s)

    def lose(self, connection: Connection) -> None:
        """A connection broke; a rank that has a newer one is not lost."""
        if connection in self._connections:
            self._connections.remove(connection)
            if all(other.rank != connection.rank for other in self._connections):
                self._on_lost(connection.rank)

    def tick(self) -> None:
        """There are no strangers."""

    def close(self) -> None:
        """Break all connections; what was sent is still delivered."""
        self._network.stop_listening(self._supervisor)
        connections, self._connections = self._connections, []
        for connection in connections:
            self._supervisor.world.at(_LINGER_S, self._network.break_off, connection)


class VirtualNetwork:
    """The connections of one replica; see `ports.Network`."""

    def __init__(self, supervisor: VirtualSupervisor) -> None:
        self._supervisor = supervisor

    def as_replica(self, on_order: Callable[[Order], None]) -> VirtualReplicaEnd:
        """See `ports.Network`."""
        self._supervisor.replica_end = VirtualReplicaEnd(self._supervisor, on_order)
        return self._supervisor.replica_end

    def as_leader(self, on_status: Callable[[ReplicaStatus], None], on_lost: Callable[[int], None]) -> VirtualLeaderEnd:
        """See `ports.Network`."""
        self._supervisor.leader_end = VirtualLeaderEnd(self._supervisor, on_status, on_lost)
        return self._supervisor.leader_end

    def free_port(self) -> int:
        """See `ports.Network`."""
        return _PORT


class VirtualDisk:
    """The files of a job; see `ports.Disk`."""

    def __init__(self, supervisor: VirtualSupervisor) -> None:
        self._supervisor, self._cluster = supervisor, supervisor.cluster

    def open_journal(self, on_record: Callable[[Record], None]) -> Journal:
        """Over the virtual disk; raises LockedError where another supervisor still writes it."""
        supervisor, task, name = self._supervisor, self._supervisor.job.task.name, self._supervisor.incarnation.name
        writer = f"{task}.{supervisor.rank}.{name}" if name else f"{task}.{supervisor.rank}"
        journal = VirtualJournalView(self._cluster.disk, task, writer, supervisor.clock, supervisor, on_record)
        journal.writer.node = supervisor.node if name else None
        supervisor.writer = journal.writer
        return journal

    def claims(self) -> Claims:
        """See `ports.Disk`."""
        return self._cluster.read_claims(self._supervisor.job.folder, self._supervisor.incarnation.name)

    def publish_claim(self, leadership: Leadership) -> bool:
        """See `ports.Disk`."""
        return self._cluster.publish_claim(self._supervisor.job.folder, leadership)


class _VirtualLinks(LinkManager):
    """The shipped chain, whose last acts wait for a write in which their supervisor hangs."""

    virtual: VirtualSupervisor

    def cancel_rest(self) -> None:
        """When the end of the task is on the disk."""
        self._when_written(super().cancel_rest)

    def release_dependents(self) -> None:
        """As above."""
        self._when_written(super().release_dependents)

    def leave(self) -> None:
        """When the end of the attempt is on the disk."""
        self._when_written(super().leave)

    def end_job(self) -> None:
        """As above."""
        self._when_written(super().end_job)

    def _when_written(self, action: Callable[[], None]) -> None:
        if self.virtual.lag_s:
            self.virtual.world.at(self.virtual.lag_s, self._act, action)
        else:
            action()

    def _act(self, action: Callable[[], None]) -> None:
        if self.virtual.is_alive:
            try:
                action()
            except Crash:
                self.virtual.die()


def ports_of(supervisor: VirtualSupervisor) -> Ports:
    """All ports of a virtual supervisor."""
    job, incarnation, cluster = supervisor.job, supervisor.incarnation, supervisor.cluster

    def make_links(journal: Journal, again: Callable[[], None]) -> LinkManager | None:
        if not isinstance(job, SiteJob):
            return None
        links = _VirtualLinks(
            job.document,
            Path(job.folder),
            incarnation,
            journal,
            scheduler=job.scheduler_for(supervisor.node, incarnation),
            read=cluster.read_heartbeats,
        )
        links.virtual = supervisor
        return links

    supervisor.processes = VirtualProcesses(supervisor)
    return Ports(
        clock=supervisor.clock,
        processes=supervisor.processes,
        network=VirtualNetwork(supervisor),
        disk=VirtualDisk(supervisor),
        make_links=make_links,
    )
