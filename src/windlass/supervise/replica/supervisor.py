"""The supervisor of one replica: one event loop around the pure cores, the only writer of the truth on this node."""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.clock import Clock, SystemClock
from windlass.core.errors import AccessError
from windlass.core.process import ProcessId, is_alive
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.frames import Record
from windlass.record.redact import Redactor
from windlass.record.state import End
from windlass.supervise.crash import keep_crash
from windlass.supervise.fencing.guard import GuardContext, is_gone, other_replicas
from windlass.supervise.gang import messages
from windlass.supervise.gang.address import free_port, own_address, own_host
from windlass.supervise.gang.connection import LeaderClient
from windlass.supervise.gang.election import Candidate, Claims, read_claims
from windlass.supervise.gang.incarnation import LOCAL, Incarnation
from windlass.supervise.gang.journal_view import RunJournalView
from windlass.supervise.gang.messages import Command, Order, Phase, ReplicaStatus, Step
from windlass.supervise.job import JobDocument
from windlass.supervise.leases import holder_of_this_process
from windlass.supervise.linux import become_subreaper
from windlass.supervise.logs.redact_all import DiscardingRedactor
from windlass.supervise.remote.delivery import secret_values, secret_variables
from windlass.supervise.replica.command_queue import CommandQueue
from windlass.supervise.replica.control import ControlFile
from windlass.supervise.replica.core import ReplicaCore
from windlass.supervise.replica.preflight import preflight
from windlass.supervise.replica.scratch import clear_scratch
from windlass.supervise.replica.signals import SignalQueue
from windlass.supervise.replica.stall_watch import StallWatch
from windlass.supervise.replica.user_command import user_command
from windlass.supervise.replica.user_process import UserProcess, sweep_left_overs

if TYPE_CHECKING:
    from windlass.supervise.gang.leader import Leader
    from windlass.supervise.slurm.step_daemon import StepDaemons

__all__ = ["Supervisor"]

_TICK_S = 1.0
_QUICK_TICK_S = 0.05
_JOIN_TICK_S = 0.02
_JOIN_TICK_PER_NODE_S, _LONGEST_JOIN_TICK_S = 0.005, 0.1  # at most 200 looks a second of a gang at its shared files


class Supervisor:
    """Runs one replica of a task; `run` blocks until the task has no more use for it.

    Args:
        job_folder: `<run>/jobs/<task>-<k>` with job.json.
        held: what the guard keeps for all supervisors that it starts.
        incarnation: the start of the job that this replica belongs to.
        daemons: Slurm's own above this replica, where it is a task of one of its steps.
    """

    def __init__(
        self,
        job_folder: Path,
        rank: int,
        context: GuardContext,
        incarnation: Incarnation = LOCAL,
        clock: Clock | None = None,
        daemons: StepDaemons | None = None,
    ) -> None:
        self._daemons = daemons
        self._clock = clock or SystemClock()
        self._folder, self._rank, self._context = job_folder, rank, context
        self._incarnation, self._place = incarnation, incarnation.folder(job_folder)
        self._job = JobDocument.read(job_folder / "job.json")
        self._host = own_host()
        self._address = self._job.host_address or own_address(self._job.interface)
        self._selector = selectors.DefaultSelector()
        self._run_commands = CommandQueue(self._execute).run
        self._exit_code: int | None = None
        self._process: UserProcess | None = None
        self._watch = StallWatch(
            self._job.task, rank, self._job.stall_floor_s, context.decision().lost_s, self._on_step
        )
        self._is_listening = False
        self._noted: set[str] = set()
        self._redactor, self._secret_problem = self._make_redactor()
        self._control = ControlFile(self._job, rank, incarnation)
        journal = Path(self._job.run_dir) / "journal"
        self._journal = RunJournalView(
            journal, self._job.task, rank, self._clock, incarnation=incarnation.name, on_record=self._on_record
        )
        self._journal.widen()
        self._core = ReplicaCore(
            rank,
            job=self._job.job,
            host=self._host,
            address=self._address,
            grace_s=self._job.grace_s,
            journal=self._journal,
            incarnation=incarnation.name,
        )
        self._core.unfit = preflight(self._job, incarnation, self._address)
        self._candidate = Candidate(rank, self._clock.monotonic())
        self._leader_client = LeaderClient(rank, self._job.token, self._selector, self._on_order)
        self._leader: Leader | None = None
        self._has_been_led = False
        self._signals = SignalQueue()

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """The whole life of this supervisor; returns the code its guard leaves with."""
        become_subreaper()
        self._signals.listen()
        self._selector.register(self._signals.socket, selectors.EVENT_READ, self._on_signals)
        self._restore()
        ticked_at = float("-inf")
        while self._exit_code is None:
            wait_s = ticked_at + self._timeout_s() - self._clock.monotonic()
            if wait_s <= 0:  # by the clock alone: a tick that follows a message would answer it, and so on for ever
                ticked_at = self._clock.monotonic()
                self._tick()
                wait_s = 0.0  # messages are heard even when every tick takes longer than the time between two
            for key, _ in self._selector.select(wait_s):
                key.data()
        self._close()
        return self._exit_code

    def _timeout_s(self) -> float:
        if self._leader is None and not self._leader_client.is_connected:
            num_nodes = 1 if self._job.is_on_one_machine else self._job.num_replicas
            return max(_JOIN_TICK_S, min(_LONGEST_JOIN_TICK_S, _JOIN_TICK_PER_NODE_S * num_nodes))
        if self._leader is not None and self._leader.wants_quick_tick:
            return _QUICK_TICK_S
        return _TICK_S

    def _tick(self) -> None:
        now = self._clock.monotonic()
        self._find_leader(now)
        self._look_at_process(now)
        self._look_at_job(now)
        self._run_commands(self._core.on_tick(now))
        if self._core.order.epoch:
            self._on_order(self._core.order)
        if self._leader is not None:
            self._leader.tick()

    def _on_signals(self) -> None:
        for number in self._signals.take():
            if number == signal.SIGCHLD:
                self._look_at_process(self._clock.monotonic())
            elif number != signal.SIGHUP:
                name = signal.Signals(number).name
                self._run_commands(self._core.on_notice(f"{self._host} sent {name} to the supervisor"))

    @property
    def _is_abandoned(self) -> bool:
        return self._daemons is not None and self._daemons.is_step_abandoned

    def _look_at_job(self, now: float) -> None:
        """Ask whether the job is over where the daemon is gone that would tell us; a leader asks for the gang."""
        if self._leader is None or self._core.notice or not self._is_abandoned:
            return
        if self._leader.is_job_over(now):
            said = f"the slurmstepd of {self._host} was killed, and its job is over in Slurm"
            self._run_commands(self._core.on_notice(said))

    def _listen_to_output(self, is_wanted: bool) -> None:
        """Wake up for output, or not: output that nobody takes would wake us again and again."""
        if is_wanted and not self._is_listening:
            self._selector.register(self._context.log_pipe.read_fd, selectors.EVENT_READ, self._on_output)
        elif self._is_listening and not is_wanted:
            self._selector.unregister(self._context.log_pipe.read_fd)
        self._is_listening = is_wanted

    def _on_output(self) -> None:
        if self._process is None or not self._process.pump():
            self._listen_to_output(False)

    def _close(self) -> None:
        if self._leader is not None:
            self._leader.close()
        self._leader_client.close()
        self._journal.close()
        self._control.remove()

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
            if self._exit_code is not None:
                return
        claims = self._claims()
        if claims.is_superseded:
            self._run_commands(self._core.on_superseded())
            return
        own = claims.own
        if own is not None and self._can_see(own.host) and is_gone(self._place, own.rank):
            self._candidate.on_leader_gone(now)
        epoch = self._candidate.epoch_to_claim(now, claims)
        if epoch:
            self._lead(epoch)
        elif own is not None and own.rank != self._rank:
            self._leader_client.send(
                self._core.status()
            )  # the connection sends it when both ends have proved themselves
            if self._leader_client.connect(own.address, own.port):
                self._candidate.on_connected(now)

    def _can_see(self, host: str) -> bool:
        """Whether processes of a host are among those seen here; each replica of Beaker is a container of its own."""
        return host == self._host and self._job.chain.scheduler != "beaker"

    def _claims(self) -> Claims:
        """Who leads and who led; one replica of one machine needs no claim."""
        is_alone = self._job.num_replicas == 1 and not self._incarnation.name
        return Claims() if is_alone else read_claims(self._folder, self._incarnation.name)

    def _yield_if_outvoted(self, now: float) -> None:
        """Follow another replica that claimed a higher epoch while this one could not be reached.

        A claim of a later start of the job ends the gang instead.
        """
        assert self._leader is not None
        claims = self._claims()
        if claims.is_superseded and self._is_abandoned:  # nobody told us what became of the job: the next link asks
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

        holder = holder_of_this_process(self._context.guard_pid)
        leader = Leader(
            self._job,
            self._folder,
            incarnation=self._incarnation,
            address=self._address,
            epoch=epoch,
            holder=holder,
            journal=self._journal,
            clock=self._clock,
            selector=self._selector,
            run=self._run_commands,
        )
        if not leader.claim(self._rank, self._host, holder):
            leader.close()
            return
        self._leader = leader
        self._journal.widen()
        leader.start()
        leader.on_status(self._core.status())

    def _on_order(self, order: Order) -> None:
        port = free_port(self._address) if self._core.needs_port(order) else 0
        self._run_commands(self._core.on_order(order, self._clock.monotonic(), port))

    # --- the user's process --------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Continue what an earlier incarnation began, and end what an earlier guard left behind."""
        attempt = self._core.restore()
        if attempt:
            self._watch.learn(self._journal.history, self._clock.monotonic(), self._core.attempt)
            self._process = self._new_process(attempt)
            recorded = self._journal.task().attempts[attempt].replicas[self._rank].process
            self._process.adopt(recorded)
            if not (recorded and is_alive(ProcessId.parse(recorded)) and self._context.guard_pid == os.getppid()):
                self._sweep()
            self._listen_to_output(True)
            if self._secret_problem:
                self._run_commands(self._core.on_stalled(self._end_of_secrets(self._secret_problem)))
        elif self._journal.task().attempts:
            self._sweep()
        self._journal.history.clear()
        self._has_been_led = bool(self._journal.task().attempts)

    def _sweep(self) -> None:
        attempts = self._journal.task().attempts.values()
        known = [attempt.replicas[self._rank].process for attempt in attempts if self._rank in attempt.replicas]
        sweep_left_overs(self._job, self._rank, self._context, known)
        for attempt in self._journal.task().attempts:
            self._clear_scratch(attempt)

    def _new_process(self, attempt: int) -> UserProcess:
        return UserProcess(self._job, self._rank, attempt, self._context, self._redactor, self._clock, self._host)

    def _make_redactor(self) -> tuple[Redactor, str]:
        """What hides the secrets, and why they are not to be had; a task that ended already does without them."""
        try:
            return Redactor(secret_values(self._job)), ""
        except AccessError as error:
            return DiscardingRedactor(), str(error)

    def _end_of_secrets(self, message: str) -> End:
        return End(str(Cause.SECRET_MISSING), 0, self._rank, self._host, message, at=self._clock.now())

    def _look_at_process(self, now: float) -> None:
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
        """What the watchdog says."""
        assert self._process is not None
        if not self._job.is_stall_watched:
            return None
        message = self._watch.verdict(
            now, self._context.decision(), self._journal.poll, self._process.stopped_by_signal
        )
        if not message:
            return None
        return End(str(Cause.STALLED), rank=self._rank, host=self._host, message=message, at=self._clock.now())

    def _on_record(self, record: Record) -> None:
        """Reports are read some time after they were made; a clock that was set may shift them by no more than that."""
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
            self._exit_code = command.code

    def _send_status(self, status: ReplicaStatus) -> None:
        if self._leader is not None:
            self._leader.on_status(status)
        else:
            self._leader_client.send(status)

    def _spawn(self, command: messages.Spawn) -> None:
        self._watch.begin()
        self._write_control(messages.WriteControl(False, 0, "", self._core.order.deadline))
        try:
            process, argv = self._begin(command)
        except AccessError as error:
            self._run_commands(self._core.on_spawn_failed(self._end_of_secrets(self._secret_problem or str(error))))
        except OSError as error:
            self._drop_process()
            cause = Cause.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else Cause.START_FAILED
            end = End(str(cause), 127, self._rank, self._host, str(error), at=self._clock.now())
            self._run_commands(self._core.on_spawn_failed(end))
        else:
            self._listen_to_output(True)
            self._run_commands(self._core.on_spawned(process, argv))

    def _begin(self, command: messages.Spawn) -> tuple[str, list[str]]:
        """Fork the user's process; returns its identity and what it is to execute."""
        if self._secret_problem:
            raise AccessError(self._secret_problem, code="secret-missing")
        secrets = secret_variables(self._job)
        for folder in (self._job.out, self._job.checkpoints):
            os.makedirs(folder, exist_ok=True)
        self._process = self._new_process(command.attempt)
        order, ours = self._core.order, self._control.variables
        run = user_command(self._job, self._folder, self._rank, command.attempt, order, ours=ours, secrets=secrets)
        return self._process.spawn(run.argv, run.env), run.words

    def _drop_process(self) -> None:
        """Between attempts nobody takes output."""
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
        """End everything of the attempt, complete its log, tell the core."""
        if self._process is None or self._core.phase is not Phase.STARTED:
            return
        left = self._process.kill(self._other_replicas)
        if left:
            pids = ", ".join(map(str, left))
            self._note(f"attempt {self._core.attempt}: could not end process {pids} on {self._host}; it may live on")
        self._clear_scratch(self._core.attempt)
        finish = self._finish()
        order = self._core.order
        stop_cause = order.cause if order.step is Step.STOP and order.attempt == self._core.attempt else ""
        end = self._process.end(finish=finish, stop_cause=stop_cause)
        self._drop_process()
        self._run_commands(self._core.on_ended(end))

    def _clear_scratch(self, attempt: int) -> None:
        """Keep the logs that lie on this node's own disk, and remove the rest of what is there."""
        logs = Path(self._job.run_dir) / "logs" / str(attempt) / self._job.task
        problem = clear_scratch(self._job.token, self._rank, attempt, logs, self._redactor)
        if problem:
            self._note(problem)

    def _finish(self) -> tuple[int, str, str] | None:
        """What this replica's code said by `report.finish`; the worst of its local ranks."""
        self._journal.poll()
        said = self._journal.facts.finishes.get((self._job.task, self._core.attempt, self._rank))
        return said and (said[0], self._redactor.redact_text(said[1]), self._redactor.redact_text(said[2]))

    def _other_replicas(self) -> set[int]:
        ours = self._leader.helpers if self._leader is not None else set()
        return ours | other_replicas(self._place, self._rank) | self._context.watchers()

    def _note(self, message: str) -> None:
        """Tell people, once."""
        if message in self._noted:
            return
        self._noted.add(message)
        with contextlib.suppress(OSError):  # a disk without room for it shows elsewhere
            self._journal.append(events.NOTE, message=message)

    def _write_control(self, command: messages.WriteControl) -> None:
        problem = self._control.write(command)
        if problem:
            self._note(problem)


def supervise(
    job_folder: Path,
    rank: int,
    context: GuardContext,
    incarnation: Incarnation = LOCAL,
    daemons: StepDaemons | None = None,
) -> int:
    """Run a supervisor; a bug of ours is written beside job.json and ends it with 70, so the guard starts it again."""
    try:
        return Supervisor(job_folder, rank, context, incarnation, daemons=daemons).run()
    except BaseException:
        keep_crash(incarnation.folder(job_folder) / f"supervisor-{rank}.crash")
        raise
