"""Supervisor of one replica: executes the commands of the pure cores, and writes this replica's journal.

It accesses the system only through `supervise.ports`; `replica.loop` runs it in a process, the simulation in virtual
time.
"""

from __future__ import annotations

import contextlib
import errno
import signal
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Callable

from windlass.core.errors import AccessError
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.frames import Record
from windlass.record.state import End
from windlass.supervise.gang import messages
from windlass.supervise.gang.election import Candidate, Claims
from windlass.supervise.gang.incarnation import LOCAL, Incarnation
from windlass.supervise.gang.messages import Command, Order, Phase, ReplicaStatus, Step
from windlass.supervise.job import JobDocument
from windlass.supervise.replica.core import ReplicaCore
from windlass.supervise.replica.stall_watch import StallWatch

if TYPE_CHECKING:
    from windlass.supervise.gang.leader import Leader
    from windlass.supervise.ports import Ports, UserCode
    from windlass.supervise.slurm.step_daemon import StepDaemons

__all__ = ["CommandQueue", "Supervisor"]

_TICK_S = 1.0
_QUICK_TICK_S = 0.05
_JOIN_TICK_S = 0.02
_JOIN_TICK_PER_NODE_S, _LONGEST_JOIN_TICK_S = 0.005, 0.1  # a gang checks its shared files at most 200 times per second


class CommandQueue:
    """Queue that executes commands in order, appending new ones to those that are pending.

    Args:
        execute: executes one command; it may call `run`, which then returns before its commands are executed.
    """

    def __init__(self, execute: Callable[[Command], None]) -> None:
        self._execute = execute
        self._waiting: deque[Command] = deque()
        self._is_running = False

    def run(self, commands: list[Command]) -> None:
        """Execute commands; if one raises, the rest is left for the next call."""
        self._waiting.extend(commands)
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._waiting:
                self._execute(self._waiting.popleft())
        finally:
            self._is_running = False


class Supervisor:
    """Supervisor of one replica of a task, driven by events.

    Args:
        job_folder: `<run>/jobs/<task>-<k>`.
        incarnation: start of the job that this replica belongs to.
        daemons: Slurm's daemons above this replica, if it is a task of a Slurm step.

    Attributes:
        exit_code: exit code of the supervisor; None while the task needs it.
    """

    def __init__(
        self,
        job: JobDocument,
        job_folder: Path,
        rank: int,
        ports: Ports,
        *,
        incarnation: Incarnation = LOCAL,
        daemons: StepDaemons | None = None,
    ) -> None:
        self._job, self._folder, self._rank, self._ports = job, job_folder, rank, ports
        self._clock, self._processes, self._disk = ports.clock, ports.processes, ports.disk
        self._incarnation, self._daemons = incarnation, daemons
        self._host = self._processes.host
        self._run_commands = CommandQueue(self._execute).run
        self.exit_code: int | None = None
        self._process: UserCode | None = None
        lost_s = self._processes.decision().lost_s
        self._watch = StallWatch(job.task, rank, job.settings.stall_floor_s, lost_s, self._on_step)
        self._noted: set[str] = set()
        self._journal = self._disk.open_journal(self._on_record)
        self._journal.widen()
        self._core = ReplicaCore(
            rank,
            job=job.job,
            host=self._host,
            address=self._processes.address,
            grace_s=job.settings.grace_s,
            journal=self._journal,
            incarnation=incarnation.name,
        )
        self._core.unfit = self._processes.unfit()
        self._candidate = Candidate(rank, self._clock.monotonic())
        self._leader_client = ports.network.as_replica(self._on_order)
        self._leader: Leader | None = None
        self._has_been_led = False

    # --- events --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Continue the work of an earlier supervisor, and kill what an earlier guard left behind."""
        self._restore()

    @property
    def timeout_s(self) -> float:
        """Return the seconds until the next `tick`."""
        if self._leader is None and not self._leader_client.is_connected:
            num_nodes = 1 if self._job.is_on_one_machine else self._job.num_replicas
            return max(_JOIN_TICK_S, min(_LONGEST_JOIN_TICK_S, _JOIN_TICK_PER_NODE_S * num_nodes))
        if self._leader is not None and self._leader.wants_quick_tick:
            return _QUICK_TICK_S
        return _TICK_S

    def tick(self) -> None:
        """Check the leader, the user's process, the journal and the deadlines."""
        now = self._clock.monotonic()
        self._find_leader(now)
        self._check_process(now)
        self._check_job(now)
        self._run_commands(self._core.on_tick(now))
        if self._core.order.epoch:
            self._on_order(self._core.order)
        if self._leader is not None:
            self._leader.tick()

    def on_signal(self, number: int) -> None:
        """Handle a signal: a child ended, or a scheduler requests that the replica stops."""
        if number == signal.SIGCHLD:
            self._check_process(self._clock.monotonic())
        elif number != signal.SIGHUP:
            name = signal.Signals(number).name
            self._run_commands(self._core.on_notice(f"{self._host} sent {name} to the supervisor"))

    @property
    def _is_abandoned(self) -> bool:
        return self._daemons is not None and self._daemons.is_step_abandoned

    def _check_job(self, now: float) -> None:
        """As the leader, check whether the job is over, if the Slurm daemon that would signal its end is dead."""
        if self._leader is None or self._core.notice or not self._is_abandoned:
            return
        if self._leader.is_job_over(now):
            notice = f"the slurmstepd of {self._host} was killed, and its job is over in Slurm"
            self._run_commands(self._core.on_notice(notice))

    def _listen_to_output(self, is_wanted: bool) -> None:
        """Enable or disable wake-ups for output; output that is not read would wake the loop continuously."""
        self._processes.watch_output(self._on_output if is_wanted else None)

    def _on_output(self) -> None:
        if self._process is None or not self._process.pump():
            self._listen_to_output(False)

    def close(self) -> None:
        """Close everything that was opened; the user's processes must be gone."""
        if self._leader is not None:
            self._leader.close()
        self._leader_client.close()
        self._journal.close()
        self._processes.close()

    # --- leading and following -----------------------------------------------------------------------------------

    def _find_leader(self, now: float) -> None:
        if self._leader is not None:
            self._yield_if_outvoted(now)
            return
        if self._leader_client.is_connected:
            self._candidate.on_connected(now)
            self._has_been_led = True
            self._journal.narrow()
            return
        if self._has_been_led:
            self._journal.widen()
            self._run_commands(self._core.on_alone())
            if self.exit_code is not None:
                return
        claims = self._claims()
        if claims.is_superseded:
            self._run_commands(self._core.on_superseded())
            return
        own = claims.own
        if own is not None and self._can_see(own.host) and self._processes.is_gone(own.rank):
            self._candidate.on_leader_gone(now)
        epoch = self._candidate.epoch_to_claim(now, claims)
        if epoch:
            self._lead(epoch)
        elif own is not None and own.rank != self._rank:
            self._leader_client.send(self._core.status())  # sent after the handshake
            if self._leader_client.connect(own.address, own.port):
                self._candidate.on_connected(now)

    def _can_see(self, host: str) -> bool:
        """Return whether a host's processes are visible here.

        On Beaker they are not, since each replica is a container.
        """
        return host == self._host and self._job.chain.scheduler != "beaker"

    def _claims(self) -> Claims:
        """Return the claims to lead the job; a single replica on one machine needs none."""
        is_alone = self._job.num_replicas == 1 and not self._incarnation.name
        return Claims() if is_alone else self._disk.claims()

    def _yield_if_outvoted(self, now: float) -> None:
        """Follow another replica that claimed a higher epoch while this one was unreachable.

        A claim of a later start of the job ends the gang instead.
        """
        assert self._leader is not None
        claims = self._claims()
        if claims.is_superseded and self._is_abandoned:  # the state of the job is unknown here; the next link asks
            self._leader.close()
            self._leader = None
            self._run_commands(self._core.on_superseded())
        elif claims.is_superseded:
            self._leader.on_superseded()
        elif self._candidate.must_yield(self._leader.epoch, claims):
            self._leader.close()
            self._leader = None
            self._candidate.on_connected(now)

    def _lead(self, epoch: int) -> None:
        from windlass.supervise.gang.leader import Leader  # lazy: one replica of a gang leads

        leader = Leader(
            self._job,
            self._folder,
            self._ports,
            incarnation=self._incarnation,
            epoch=epoch,
            journal=self._journal,
            run=self._run_commands,
        )
        if not leader.claim(self._rank):
            leader.close()
            return
        self._leader = leader
        self._journal.widen()
        leader.start()
        leader.on_status(self._core.status())

    def _on_order(self, order: Order) -> None:
        port = self._ports.network.free_port() if self._core.needs_port(order) else 0
        self._run_commands(self._core.on_order(order, self._clock.monotonic(), port))

    # --- the user's process --------------------------------------------------------------------------------------

    def _restore(self) -> None:
        attempt = self._core.restore()
        if attempt:
            self._watch.learn(self._journal.history, self._clock.monotonic(), self._core.attempt)
            recorded = self._journal.task().attempts[attempt].replicas[self._rank].process
            self._process, is_ours = self._processes.adopt(attempt, recorded)
            if not is_ours:
                self._sweep()
            self._listen_to_output(True)
            if self._processes.secret_problem:
                self._run_commands(self._core.on_stalled(self._end_of_secrets(self._processes.secret_problem)))
        elif self._journal.task().attempts:
            self._sweep()
        self._journal.history.clear()
        self._has_been_led = bool(self._journal.task().attempts)

    def _sweep(self) -> None:
        attempts = self._journal.task().attempts
        replicas = [attempt.replicas[self._rank] for attempt in attempts.values() if self._rank in attempt.replicas]
        self._processes.sweep([replica.process for replica in replicas])
        for attempt in attempts:
            self._clear_scratch(attempt)

    def _end_of_secrets(self, message: str) -> End:
        return End(str(Cause.SECRET_MISSING), 0, self._rank, self._host, message, at=self._clock.now())

    def _check_process(self, now: float) -> None:
        if self._process is None or self._core.phase is not Phase.STARTED:
            return
        if self._process.is_blocked and self._process.pump():
            self._listen_to_output(True)
        if self._process.has_exited():
            self._run_commands([messages.KillTree()])
            return
        self._process.insist()
        end = self._process.trouble(now, self._other_replicas) or self._stall(now)
        if end is not None:
            self._run_commands(self._core.on_stalled(end))

    def _stall(self, now: float) -> End | None:
        """Return the end to record for a stalled process; None if the stall detector found no stall."""
        assert self._process is not None
        if not self._job.settings.is_stall_watched:
            return None
        message = self._watch.verdict(
            now, self._processes.decision(), self._journal.poll, self._process.stopped_by_signal
        )
        if not message:
            return None
        return End(str(Cause.STALLED), rank=self._rank, host=self._host, message=message, at=self._clock.now())

    def _on_record(self, record: Record) -> None:
        """Handle a record; its age is limited to two ticks, since a changed clock distorts it."""
        age_s = min(max(0.0, self._clock.now() - record.at), 2 * _TICK_S)
        self._watch.on_record(record, self._clock.monotonic() - age_s, self._core.attempt)

    def _on_step(self, step: int, at: float) -> None:
        self._core.step_timer.on_step(step, at)

    # --- commands ------------------------------------------------------------------------------------------------

    def _execute(self, command: Command) -> None:
        if isinstance(command, messages.SendStatus):
            self._send_status(command.status)
        elif isinstance(command, messages.SendOrder):
            assert self._leader is not None
            self._on_order(self._leader.send(command.order))
        elif isinstance(command, messages.Spawn):
            self._spawn(command)
        elif isinstance(command, messages.OpenGate):
            self._open_gate()
        elif isinstance(command, messages.SignalProcess) and self._process is not None:
            self._process.terminate()
        elif isinstance(command, messages.KillTree):
            self._kill_tree()
        elif isinstance(command, messages.WriteControl):
            self._write_control(command)
        elif isinstance(command, messages.Respawn) and self._leader is not None:
            self._leader.respawn(command.rank)
        elif isinstance(command, messages.Release) and self._leader is not None:
            self._leader.release()
        elif isinstance(command, messages.HandOver) and self._leader is not None:
            self._leader.hand_over()
        elif isinstance(command, messages.Leave):
            self.exit_code = command.code

    def _send_status(self, status: ReplicaStatus) -> None:
        if self._leader is not None:
            self._leader.on_status(status)
        else:
            self._leader_client.send(status)

    def _spawn(self, command: messages.Spawn) -> None:
        self._watch.begin()
        self._write_control(messages.WriteControl(False, 0, "", self._core.order.deadline))
        try:
            self._process, identity, argv = self._processes.spawn(command.attempt, self._core.order)
        except AccessError as error:
            message = self._processes.secret_problem or str(error)
            self._run_commands(self._core.on_spawn_failed(self._end_of_secrets(message)))
        except OSError as error:
            self._drop_process()
            cause = Cause.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else Cause.START_FAILED
            end = End(str(cause), 127, self._rank, self._host, str(error), at=self._clock.now())
            self._run_commands(self._core.on_spawn_failed(end))
        else:
            self._listen_to_output(True)
            self._run_commands(self._core.on_spawned(identity, argv))

    def _drop_process(self) -> None:
        """Forget the user's process and stop reading its output, between attempts."""
        self._listen_to_output(False)
        self._process = None

    def _open_gate(self) -> None:
        assert self._process is not None
        problem = self._process.open_gate()
        if problem:
            self._process.has_exited()
            end = End(str(Cause.START_FAILED), 127, self._rank, self._host, problem, at=self._clock.now())
            self._run_commands(self._core.on_spawn_failed(end))

    def _kill_tree(self) -> None:
        """Kill all processes of the attempt, complete its log, and notify the core."""
        if self._process is None or self._core.phase is not Phase.STARTED:
            return
        left = self._process.kill(self._other_replicas)
        if left:
            pids = ", ".join(map(str, left))
            self._note(
                f"attempt {self._core.attempt}: cannot kill process {pids} on {self._host}; it may still be running"
            )
        self._clear_scratch(self._core.attempt)
        finish = self._finish()
        order = self._core.order
        stop_cause = order.cause if order.step is Step.STOP and order.attempt == self._core.attempt else ""
        end = self._process.end(finish=finish, stop_cause=stop_cause)
        self._drop_process()
        self._run_commands(self._core.on_ended(end))

    def _clear_scratch(self, attempt: int) -> None:
        problem = self._processes.clear_scratch(attempt)
        if problem:
            self._note(problem)

    def _finish(self) -> tuple[int, str, str] | None:
        """Return what this replica's code reported with `report.finish`: the worst report of its local ranks."""
        self._journal.poll()
        report = self._journal.facts.finishes.get((self._job.task, self._core.attempt, self._rank))
        return report and (report[0], self._processes.redact(report[1]), self._processes.redact(report[2]))

    def _other_replicas(self) -> set[int]:
        ours = self._leader.helpers if self._leader is not None else set()
        return ours | self._processes.others()

    def _note(self, message: str) -> None:
        """Write a note for the user, unless it was written before."""
        if message in self._noted:
            return
        self._noted.add(message)
        with contextlib.suppress(OSError):  # a full disk is reported elsewhere
            self._journal.append(events.NOTE, message=message)

    def _write_control(self, command: messages.WriteControl) -> None:
        problem = self._processes.request(command)
        if problem:
            self._note(problem)
