"""A virtual supervisor: the shell of `supervise.supervisor` in virtual time, around the shipped cores.

It executes what the cores command and brings them what happens; it takes no decision of its own. Where the shipped
shell is changed, this one has to follow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.sim.disk import Crash, VirtualJournalView
from tests.sim.leader import VirtualLeader
from tests.sim.network import Connection
from tests.sim.process import VirtualProcess
from windlass.record.causes import Cause
from windlass.record.frames import Record
from windlass.record.state import End
from windlass.supervise.gang import election, messages
from windlass.supervise.gang.messages import Command, Order, Phase, ReplicaStatus, Step
from windlass.supervise.replica import core
from windlass.supervise.replica.classify import Evidence, classify
from windlass.supervise.replica.stall_watch import StallWatch
from windlass.supervise.replica.supervisor import CommandQueue

if TYPE_CHECKING:
    from tests.sim.guard import VirtualGuard

__all__ = ["VirtualSupervisor"]

_TICK_S = 1.0
_QUICK_TICK_S = 0.1
_JOIN_TICK_S = 0.25
_LINGER_S = 0.05
_STALL_FLOOR_S = 12.0
_SITE_STALL_FLOOR_S = 40.0


class VirtualSupervisor:
    """One incarnation of the supervisor of one replica.

    Raises:
        LockedError: another incarnation or job still writes this replica's journal.
    """

    def __init__(self, guard: VirtualGuard) -> None:
        self.guard, self.job, self.rank, self.node = guard, guard.job, guard.rank, guard.node
        self.incarnation = guard.incarnation
        self.cluster, self.world, self.clock = guard.cluster, guard.cluster.world, guard.node.clock
        self.is_alive = True
        self.leader: VirtualLeader | None = None
        self.connection: Connection | None = None
        self.process: VirtualProcess | None = None
        self._run_commands = CommandQueue(self._execute).run
        self._exit_code: int | None = None
        self._has_been_led = False
        self._busy_until = 0.0
        task, name = self.job.task.name, self.incarnation.name
        self._watch = StallWatch(
            task, self.rank, _SITE_STALL_FLOOR_S if name else _STALL_FLOOR_S, guard.decision().lost_s
        )
        writer = f"{task}.{self.rank}.{name}" if name else f"{task}.{self.rank}"
        self.journal = VirtualJournalView(self.cluster.disk, task, writer, self.clock, self, self._on_record)
        self.journal.writer.node = self.node if name else None
        self._core = core.ReplicaCore(
            self.rank,
            job=self.job.number,
            host=self.node.name,
            address=self.node.address,
            grace_s=self.job.task.grace_s,
            journal=self.journal,
            incarnation=name,
        )
        self._candidate = election.Candidate(self.rank, self.clock.monotonic())

    # --- life ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Restore, then tick until it leaves or is killed."""
        self.world.log("%s.%d: supervisor of job %d starts", self.job.task.name, self.rank, self.job.number)
        self._restore()
        self._loop()

    def enter(self, action: Callable[..., None], *args: object) -> None:
        """Let the supervisor handle one event, after whatever still blocks it."""
        if not self.is_alive:
            return
        if self.node.is_stalled:  # it hangs in the first look at the journal
            self._busy_until = max(self._busy_until, self.node.stalled_until)
        if self.world.now < self._busy_until:
            self.world.at(self._busy_until - self.world.now, self.enter, action, *args)
            return
        if self._exit_code is not None:
            return  # it is about to leave
        try:
            action(*args)
        except Crash:
            self.die()
            return
        self._after_event()

    def die(self, code: int | None = None) -> None:
        """Its end, by its own will (a code) or not."""
        if not self.is_alive:
            return
        self.is_alive = False
        self.world.log(
            "%s.%d: supervisor %s", self.job.task.name, self.rank, "crashes" if code is None else f"leaves with {code}"
        )
        self.journal.close()
        if code is None:
            self.cluster.network.close(self)
        else:  # what it said last is still delivered
            self.world.at(_LINGER_S, self.cluster.network.close, self)
        if self.process is not None and self.process.is_gated:
            self.process.kill()
        self.guard.on_supervisor_end(code)

    def kill(self) -> None:
        """SIGKILL."""
        self.die()

    def notify(self, reason: str) -> None:
        """SIGTERM to the supervisor."""
        self.enter(lambda: self._run_commands(self._core.on_notice(reason)))

    @property
    def lag_s(self) -> float:
        """How long it still hangs in a write, before anything that follows is done."""
        return self.journal.writer.delay_s if self.journal.writer.is_hanging else 0.0

    def _loop(self) -> None:
        if not self.is_alive:
            return
        self.enter(self._tick)
        if self.is_alive:
            self.world.at(max(self._timeout_s(), self._busy_until - self.world.now), self._loop)

    def _timeout_s(self) -> float:
        if self.leader is None and self.connection is None:
            return _JOIN_TICK_S
        return _QUICK_TICK_S if self.leader is not None and self.leader.wants_quick_tick else _TICK_S

    def _tick(self) -> None:
        now = self.clock.monotonic()
        self._find_leader(now)
        self._look_at_process(now)
        self._run_commands(self._core.on_tick(now))
        if self._core.order.epoch:
            self._on_order(self._core.order)
        if self.leader is not None:
            self.leader.tick()

    def _after_event(self) -> None:
        """What costs time and what ends, once an event is handled."""
        delay_s, self.journal.writer.delay_s = self.journal.writer.delay_s, 0.0
        if delay_s:
            self.world.log("%s.%d: the disk takes %.1f s", self.job.task.name, self.rank, delay_s)
            self._busy_until = self.world.now + delay_s
        self.cluster.monitor.on_order(self, self._core.order)
        if self._exit_code is not None and delay_s:
            self.world.at(delay_s, self.die, self._exit_code)
        elif self._exit_code is not None:
            self.die(self._exit_code)

    # --- leading and following -----------------------------------------------------------------------------------

    def _find_leader(self, now: float) -> None:
        if self.leader is not None:
            self._yield_if_outvoted(now)
            return
        if self.connection is not None:
            self._candidate.on_connected(now)
            self._has_been_led = True
            return
        if self._has_been_led:
            self._run_commands(self._core.on_alone())
            if self._exit_code is not None:
                return
        claims = self._claims()
        if claims.is_superseded:
            self._run_commands(self._core.on_superseded())
            return
        newest = claims.own
        if newest is not None and self.cluster.is_gone(self.job.folder, newest.rank):
            self._candidate.on_leader_gone(now)
        epoch = self._candidate.epoch_to_claim(now, claims)
        if epoch:
            self._lead(epoch)
        elif newest is not None and newest.rank != self.rank and self._connect(newest):
            self._candidate.on_connected(now)
            self._send_status(self._core.status())

    def _claims(self) -> election.Claims:
        is_alone = self.job.task.num_replicas == 1 and not self.incarnation.name
        return election.Claims() if is_alone else self.cluster.read_claims(self.job.folder, self.incarnation.name)

    def _yield_if_outvoted(self, now: float) -> None:
        assert self.leader is not None
        claims = self._claims()
        if claims.is_superseded:
            self.leader.on_superseded()
        elif self._candidate.must_yield(self.leader.epoch, claims):
            self.world.log("%s.%d: yields to epoch %s", self.job.task.name, self.rank, claims.newest)
            self.cluster.network.close(self)
            self.leader = None
            self._candidate.on_connected(now)

    def _lead(self, epoch: int) -> None:
        leader = VirtualLeader(self, epoch)
        if not leader.claim():
            return
        self.world.log("%s.%d: leads with epoch %d", self.job.task.name, self.rank, epoch)
        self.leader = leader
        leader.start()
        leader.on_status(self._core.status())

    def _connect(self, claim: election.Leadership) -> bool:
        guard = self.cluster.guards.get((str(self.incarnation.folder(Path(self.job.folder))), claim.rank))
        supervisor = guard.supervisor if guard is not None else None
        if supervisor is None or supervisor.leader is None or supervisor.leader.epoch != claim.epoch:
            return False
        self.connection = self.cluster.network.connect(self, supervisor, self.rank)
        if self.connection is None:
            return False
        supervisor.leader.admit(self.connection)
        return True

    def receive_order(self, connection: Connection, order: Order) -> None:
        """An order from the network."""
        self.enter(self._on_order, order)

    def receive_status(self, connection: Connection, status: ReplicaStatus) -> None:
        """A status from the network; without a leader here it is lost."""
        if self.leader is not None:
            self.enter(self._on_status, status)

    def lose_connection(self, connection: Connection) -> None:
        """The other end of a connection is gone."""
        if connection is self.connection:
            self.connection = None
        elif connection.leader is self:
            self.enter(self._on_lost, connection)

    def _on_status(self, status: ReplicaStatus) -> None:
        if self.leader is not None:
            self.leader.on_status(status)

    def _on_lost(self, connection: Connection) -> None:
        if self.leader is not None:
            self.leader.on_lost(connection)

    def _on_order(self, order: Order) -> None:
        self._run_commands(self._core.on_order(order, self.clock.monotonic(), 29500))

    # --- the user's process --------------------------------------------------------------------------------------

    def _restore(self) -> None:
        attempt = self._core.restore()
        if attempt:
            self._watch.learn(self.journal.history, self.clock.monotonic(), self._core.attempt)
            recorded = self.journal.task().attempts[attempt].replicas[self.rank].process
            self._adopt(recorded)
        if self.journal.task().attempts and not self._is_adopted():
            self._sweep_left_overs()
        self.journal.history.clear()
        self._has_been_led = bool(self.incarnation.name) and bool(self.journal.task().attempts)

    def _adopt(self, identity: str) -> None:
        self.process = self.cluster.processes.find(identity)
        if self._is_adopted():
            assert self.process is not None
            self.process.on_exit = None

    def _is_adopted(self) -> bool:
        """Whether the process of an earlier incarnation under this guard goes on."""
        return self.process is not None and self.process.is_alive and self.process in self.guard.children

    def _sweep_left_overs(self) -> None:
        for process in self.cluster.processes.of(self.job.token, self.rank, self.node):
            process.kill()

    def _look_at_process(self, now: float) -> None:
        if not self._has_begun():
            return
        if self.process is None or not self.process.is_alive:
            self._run_commands([messages.KillTree()])
            return
        end = self._stall(now)
        if end is not None:
            self._run_commands(self._core.on_stalled(end))

    def _has_begun(self) -> bool:
        return self._core.phase is Phase.STARTED

    def _stall(self, now: float) -> End | None:
        message = self._watch.verdict(now, self.guard.decision(), self.journal.poll, is_stopped=lambda: False)
        if not message:
            return None
        return End(str(Cause.STALLED), rank=self.rank, host=self.node.name, message=message, at=self.clock.now())

    def _on_record(self, record: Record) -> None:
        self._watch.on_record(record, self.clock.monotonic(), self._core.attempt)

    # --- commands ------------------------------------------------------------------------------------------------

    def run(self, commands: list[Command]) -> None:
        """Execute a core's commands."""
        self._run_commands(commands)

    def _execute(self, command: Command) -> None:
        if isinstance(command, messages.SendStatus):
            self._send_status(command.status)
        elif isinstance(command, messages.SendOrder):
            assert self.leader is not None
            self._on_order(self.leader.send(command.order))
        elif isinstance(command, messages.Spawn):
            self._spawn(command)
        elif isinstance(command, messages.OpenGate):
            self._open_gate()
        elif isinstance(command, messages.SignalProcess) and self.process is not None:
            self.process.terminate()
        elif isinstance(command, messages.KillTree):
            self._kill_tree()
        elif isinstance(command, messages.WriteControl):
            if command.is_stop_wanted and self.process is not None:
                self.process.ask()
        elif isinstance(command, messages.Leave):
            if not self.lag_s:
                self.cluster.monitor.on_leave(self, command.code)
            self._exit_code = command.code
        elif self.leader is not None:
            self._execute_as_leader(self.leader, command)

    def _execute_as_leader(self, leader: VirtualLeader, command: Command) -> None:
        if isinstance(command, messages.Respawn):
            leader.respawn(command.rank)
        elif isinstance(command, messages.Release):
            self._when_written(leader.release)
        elif isinstance(command, messages.HandOver):
            self._when_written(leader.hand_over)

    def _when_written(self, action: Callable[[], None]) -> None:
        """Do what comes after a record, when it is on the server."""
        if self.lag_s:
            self.world.at(self.lag_s, lambda: action() if self.is_alive else None)
        else:
            action()

    def _send_status(self, status: ReplicaStatus) -> None:
        if status.phase is Phase.READY:
            self.cluster.monitor.on_ready(self.job, status.attempt, self.rank)
        if self.leader is not None:
            self.leader.on_status(status)
        elif self.connection is not None:
            self.cluster.network.send_status(self.connection, status, self.lag_s)

    def _spawn(self, command: messages.Spawn) -> None:
        self._watch.begin()
        process = VirtualProcess(
            self.cluster.processes,
            task=self.job.task,
            token=self.job.token,
            job=self.job.number,
            attempt=command.attempt,
            rank=self.rank,
            node=self.node,
        )
        process.incarnation = self.incarnation.name
        self.cluster.processes.add(process)
        self.guard.children.append(process)
        self.process = process
        process.on_exit = lambda: self.enter(self._on_child)
        self._run_commands(self._core.on_spawned(process.identity, ["python", "train.py"]))

    def _on_child(self) -> None:
        self._look_at_process(self.clock.monotonic())

    def _open_gate(self) -> None:
        assert self.process is not None
        if self.journal.writer.delay_s:
            self.world.at(self.journal.writer.delay_s, self.enter, self._open_gate_of, self.process)
            self.journal.writer.delay_s = max(0.0, self.journal.writer.delay_s - 0.001)
        else:
            self._open_gate_of(self.process)

    def _open_gate_of(self, process: VirtualProcess) -> None:
        if not process.is_alive:
            return
        problem = process.open_gate()
        if problem:
            end = End(str(Cause.START_FAILED), 127, self.rank, self.node.name, problem, at=self.clock.now())
            self._run_commands(self._core.on_spawn_failed(end))

    def _kill_tree(self) -> None:
        if self._core.phase is not Phase.STARTED:
            return
        code = -9
        if self.process is not None:
            self.process.kill()
            assert self.process.code is not None
            code = self.process.code if self.process in self.guard.children else -9
        self.journal.poll()
        order = self._core.order
        is_stopped = order.step is Step.STOP and order.attempt == self._core.attempt
        evidence = Evidence(
            stop_cause=order.cause if is_stopped else "",
            finish=self.journal.facts.finishes.get((self.job.task.name, self._core.attempt, self.rank)),
        )
        fenced = self._why_fenced() if code == -9 and not evidence.stop_cause else ""
        end = classify(code, evidence, rank=self.rank, host=self.node.name, at=self.clock.now())
        if fenced:
            end = End(str(Cause.NODE_LOST), code, self.rank, self.node.name, fenced, at=self.clock.now())
        self.process = None
        self._run_commands(self._core.on_ended(end))

    def _why_fenced(self) -> str:
        if self.process is None:
            return ""
        boot_s = self.clock.monotonic() - self.world.now
        return self.guard.decision().why_killed(self.process.started_at + boot_s)
