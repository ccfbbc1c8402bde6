"""The supervisor of one replica: one event loop around the pure cores, the only writer of the truth on this node."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import signal
import socket
from collections import deque
from pathlib import Path

from windlass.core.clock import Clock, SystemClock
from windlass.core.errors import AccessError
from windlass.core.files import write_atomic
from windlass.core.process import ProcessId, identify, is_alive
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.frames import Record
from windlass.record.redact import Redactor
from windlass.record.state import End
from windlass.supervise import messages
from windlass.supervise.delivery import secret_values, secret_variables
from windlass.supervise.election import Candidate, newest_claim
from windlass.supervise.environment import TOKEN_NAME, replace_tokens, user_environment
from windlass.supervise.guard import FORWARDED, Held, is_gone, other_replicas
from windlass.supervise.job import JobDocument
from windlass.supervise.leader import Leader
from windlass.supervise.leases import holder_of_this_process
from windlass.supervise.ledger import JournalLedger
from windlass.supervise.link import Follower
from windlass.supervise.linux import become_subreaper
from windlass.supervise.messages import Command, Order, Phase, Status, Step
from windlass.supervise.replica import ReplicaCore
from windlass.supervise.user_process import UserProcess, sweep_left_overs
from windlass.supervise.watchdog import Watchdog
from windlass.supervise.withholder import Withholder

__all__ = ["Supervisor"]

_TICK_S = 1.0
_QUICK_TICK_S = 0.05
_JOIN_TICK_S = 0.02
_STOPPED_AFTER_S = 5.0
_MAX_CRASH_BYTES = 64 << 10
_REPORTS = (events.PROGRESS, events.METRICS, events.CHECKPOINT)


class Supervisor:
    """Runs one replica of a task; `run` blocks until the task has no more use for it.

    Args:
        job_folder: `<run>/jobs/<task>-<k>` with job.json.
        held: what the guard keeps for all incarnations.
    """

    def __init__(self, job_folder: Path, rank: int, held: Held, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._folder, self._rank, self._held = job_folder, rank, held
        self._job = JobDocument.read(job_folder / "job.json")
        self._host = socket.gethostname()
        self._selector = selectors.DefaultSelector()
        self._queue: deque[Command] = deque()
        self._is_running_queue = False
        self._exit_code: int | None = None
        self._process: UserProcess | None = None
        self._watchdog = Watchdog(self._job.stall_floor_s)
        self._stopped_since = 0.0
        self._is_listening = False
        self._noted: set[str] = set()
        self._redactor, self._secret_problem = self._make_redactor()
        self._control = self._scratch() / "control.json"
        writer = f"{self._job.task}.{rank}"
        journal = Path(self._job.run_dir) / "journal"
        self._ledger = JournalLedger(journal, self._job.task, writer, self._clock, on_record=self._on_record)
        self._ledger.widen()
        self._core = ReplicaCore(
            rank,
            job=self._job.job,
            host=self._host,
            address=self._job.host_address,
            grace_s=self._job.grace_s,
            ledger=self._ledger,
        )
        self._candidate = Candidate(rank, self._clock.monotonic())
        self._follower = Follower(rank, self._job.token, self._selector, self._on_order)
        self._leader: Leader | None = None
        self._has_been_led = False
        self._waker, self._wakened = socket.socketpair()

    # --- the loop ------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """The whole life of this supervisor; returns the code its guard leaves with."""
        become_subreaper()
        self._listen_to_signals()
        self._restore()
        ticked_at = float("-inf")
        while self._exit_code is None:
            wait_s = ticked_at + self._timeout_s() - self._clock.monotonic()
            if wait_s <= 0:  # by the clock alone: a tick that follows a message would answer it, and so on for ever
                ticked_at = self._clock.monotonic()
                self._tick()
                continue
            for key, _ in self._selector.select(wait_s):
                key.data()
        self._close()
        return self._exit_code

    def _timeout_s(self) -> float:
        if self._leader is None and not self._follower.is_connected:
            return _JOIN_TICK_S
        if self._leader is not None and self._leader.wants_quick_tick:
            return _QUICK_TICK_S
        return _TICK_S

    def _tick(self) -> None:
        now = self._clock.monotonic()
        self._find_leader(now)
        self._look_at_process(now)
        self._run_commands(self._core.on_tick(now))
        if self._core.order.epoch:
            self._on_order(self._core.order)
        if self._leader is not None:
            self._leader.tick()

    def _listen_to_signals(self) -> None:
        self._waker.setblocking(False)
        self._wakened.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *FORWARDED):
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)  # the guard began us with them blocked
        self._selector.register(self._wakened, selectors.EVENT_READ, self._on_signals)

    def _on_signals(self) -> None:
        for number in set(self._wakened.recv(4096)):
            if number == signal.SIGCHLD:
                self._look_at_process(self._clock.monotonic())
            elif number != signal.SIGHUP:
                name = signal.Signals(number).name
                self._run_commands(self._core.on_notice(f"{self._host} sent {name} to the supervisor"))

    def _listen_to_output(self, is_wanted: bool) -> None:
        """Wake up for output, or not: output that nobody takes would wake us again and again."""
        if is_wanted and not self._is_listening:
            self._selector.register(self._held.channel.read_fd, selectors.EVENT_READ, self._on_output)
        elif self._is_listening and not is_wanted:
            self._selector.unregister(self._held.channel.read_fd)
        self._is_listening = is_wanted

    def _on_output(self) -> None:
        if self._process is None or not self._process.pump():
            self._listen_to_output(False)

    def _close(self) -> None:
        if self._leader is not None:
            self._leader.close()
        self._follower.close()
        self._ledger.close()
        import shutil  # lazy: 4 ms that nobody waits for here

        shutil.rmtree(str(self._control.parent), ignore_errors=True)

    # --- leading and following -----------------------------------------------------------------------------------

    def _find_leader(self, now: float) -> None:
        if self._leader is not None:
            self._yield_if_outvoted(now)
            return
        if self._follower.is_connected:
            self._candidate.on_connected(now)
            self._has_been_led = True
            return
        if self._has_been_led:
            self._ledger.widen()
            self._run_commands(self._core.on_alone())
            if self._exit_code is not None:
                return
        newest = newest_claim(self._folder) if self._job.num_replicas > 1 else None
        if newest is not None and newest.host == self._host and is_gone(self._folder, newest.rank):
            self._candidate.on_leader_gone(now)
        epoch = self._candidate.epoch_to_claim(now, newest)
        if epoch:
            self._lead(epoch)
        elif newest is not None and newest.rank != self._rank and self._follower.connect(newest.address, newest.port):
            self._candidate.on_connected(now)
            self._follower.send(self._core.status())

    def _yield_if_outvoted(self, now: float) -> None:
        """Follow another replica that claimed a higher epoch while this one could not be reached."""
        assert self._leader is not None
        newest = newest_claim(self._folder) if self._job.num_replicas > 1 else None
        if self._candidate.must_yield(self._leader.epoch, newest):
            self._leader.close()
            self._leader = None
            self._candidate.on_connected(now)

    def _lead(self, epoch: int) -> None:
        holder = holder_of_this_process(self._held.guard_pid)
        leader = Leader(
            self._job,
            self._folder,
            epoch=epoch,
            holder=holder,
            ledger=self._ledger,
            clock=self._clock,
            selector=self._selector,
            run=self._run_commands,
        )
        if not leader.claim(self._rank, self._host, holder):
            leader.close()
            return
        self._leader = leader
        self._ledger.widen()
        leader.start()
        leader.on_status(self._core.status())

    def _on_order(self, order: Order) -> None:
        port = self._free_port() if self._core.needs_port(order) else 0
        self._run_commands(self._core.on_order(order, self._clock.monotonic(), port))

    def _free_port(self) -> int:
        with socket.create_server((self._job.host_address, 0)) as server:
            return int(server.getsockname()[1])

    # --- the user's process --------------------------------------------------------------------------------------

    def _restore(self) -> None:
        """Continue what an earlier incarnation began, and end what an earlier guard left behind."""
        attempt = self._core.restore()
        if attempt:
            self._watch_history()
            self._process = self._new_process(attempt)
            recorded = self._ledger.task().attempts[attempt].replicas[self._rank].process
            self._process.adopt(recorded)
            if not (recorded and is_alive(ProcessId.parse(recorded)) and self._held.guard_pid == os.getppid()):
                self._sweep()
            self._listen_to_output(True)
            if self._secret_problem:
                self._run_commands(self._core.on_stalled(self._end_of_secrets(self._secret_problem)))
        elif self._ledger.task().attempts:
            self._sweep()
        self._ledger.history.clear()
        self._has_been_led = bool(self._ledger.task().attempts)

    def _sweep(self) -> None:
        attempts = self._ledger.task().attempts.values()
        known = [attempt.replicas[self._rank].process for attempt in attempts if self._rank in attempt.replicas]
        sweep_left_overs(self._job, self._rank, self._held, known)

    def _new_process(self, attempt: int) -> UserProcess:
        return UserProcess(self._job, self._rank, attempt, self._held, self._redactor, self._clock, self._host)

    def _make_redactor(self) -> tuple[Redactor, str]:
        """What hides the secrets, and why they are not to be had; a task that ended already does without them."""
        try:
            return Redactor(secret_values(self._job)), ""
        except AccessError as error:
            return Withholder(), str(error)

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
        """What the watchdog says; a process in state T is found without any report."""
        assert self._process is not None
        if not self._job.is_stall_watched:
            return None
        if self._process.stopped_by_signal():
            self._stopped_since = self._stopped_since or now
        else:
            self._stopped_since = 0.0
        self._ledger.poll()
        message = self._watchdog.verdict(now)
        limit_s = min(self._job.stall_floor_s, _STOPPED_AFTER_S)
        if not message and self._stopped_since and now > self._stopped_since + limit_s:
            message = "the process is stopped (SIGSTOP)"
        if not message:
            return None
        return End(str(Cause.STALLED), rank=self._rank, host=self._host, message=message, at=self._clock.now())

    def _on_record(self, record: Record) -> None:
        """Reports are read some time after they were made; a clock that was set may shift them by no more than that."""
        age_s = min(max(0.0, self._clock.now() - record.at), 2 * _TICK_S)
        self._watch(record, self._clock.monotonic() - age_s)

    def _watch_history(self) -> None:
        """Let the watchdog learn from what an earlier supervisor saw; silence counts from now on."""
        history = self._ledger.history
        shift = self._clock.monotonic() - max((record.at for record in history), default=0.0)
        for record in sorted(history, key=lambda record: record.at):
            self._watch(record, record.at + shift)

    def _watch(self, record: Record, at: float) -> None:
        data = record.data
        if record.kind not in _REPORTS or data["task"] != self._job.task:
            return
        if data["rank"] == self._rank and data["attempt"] == self._core.attempt:
            phase = {events.METRICS: "step", events.CHECKPOINT: "save"}.get(record.kind) or data["phase"]
            step = data["step"] if data["step"] is not None else -1
            self._watchdog.on_report(phase, step, at)

    # --- commands ------------------------------------------------------------------------------------------------

    def _run_commands(self, commands: list[Command]) -> None:
        """Execute commands in order; those that follow from them come behind the present ones."""
        self._queue.extend(commands)
        if self._is_running_queue:
            return
        self._is_running_queue = True
        try:
            while self._queue:
                self._execute(self._queue.popleft())
        finally:
            self._is_running_queue = False

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
        elif isinstance(command, messages.Leave):
            self._exit_code = command.code

    def _send_status(self, status: Status) -> None:
        if self._leader is not None:
            self._leader.on_status(status)
        else:
            self._follower.send(status)

    def _spawn(self, command: messages.Spawn) -> None:
        self._watchdog = Watchdog(self._job.stall_floor_s)
        self._stopped_since = 0.0
        self._write_control(messages.WriteControl(False, 0, "", self._core.order.deadline))
        try:
            process, argv = self._begin(command)
        except AccessError as error:
            self._run_commands(self._core.on_spawn_failed(self._end_of_secrets(self._secret_problem or str(error))))
        except OSError as error:
            self._drop_process()
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            cause = Cause.DISK_FULL if is_full else Cause.START_FAILED
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
        tokens = {
            "leader.address": command.address,
            "leader.port": str(command.port),
            "rank": str(self._rank),
            "attempt": str(command.attempt),
        }
        argv = [replace_tokens(word, tokens) for word in self._job.replicas[self._rank].argv]
        env = user_environment(self._job, self._rank, tokens=tokens, ours=self._our_variables(), secrets=secrets)
        return self._process.spawn(argv, env), argv

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

    def _our_variables(self) -> dict[str, str]:
        ours = {
            "WINDLASS_JOURNAL": str(Path(self._job.run_dir) / "journal"),
            "WINDLASS_CONTROL": str(self._control),
            "WINDLASS_CHECKPOINT_PATTERN": self._job.checkpoint_pattern,
            "WINDLASS_RESUME": "1" if self._job.is_resuming else "0",
            TOKEN_NAME: f"{self._job.token}.{self._rank}",
        }
        for variable, is_file in (("WINDLASS_SECRET_NAMES", False), ("WINDLASS_SECRET_FILES", True)):
            names = [use.name for use in self._job.secrets if use.is_file is is_file]
            if names:
                ours[variable] = ",".join(names)
        if self._job.checkpoint_every_s:
            ours["WINDLASS_CHECKPOINT_EVERY"] = f"{self._job.checkpoint_every_s:g}"
        if self._job.lease.folder:
            gpus = [gpu for gpu in self._core.order.gpus.split(",") if gpu]
            share = len(gpus) // self._job.num_replicas
            ours["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[self._rank * share : (self._rank + 1) * share])
        return ours

    def _kill_tree(self) -> None:
        """End everything of the attempt, complete its log, tell the core."""
        if self._process is None or self._core.phase is not Phase.STARTED:
            return
        left = self._process.kill(self._other_replicas())
        if left:
            pids = ", ".join(map(str, left))
            self._note(f"attempt {self._core.attempt}: could not end process {pids} on {self._host}; it may live on")
        finish = self._finish()
        order = self._core.order
        stop_cause = order.cause if order.step is Step.STOP and order.attempt == self._core.attempt else ""
        end = self._process.end(finish=finish, stop_cause=stop_cause)
        self._drop_process()
        self._run_commands(self._core.on_ended(end))

    def _finish(self) -> tuple[int, str, str] | None:
        """What this replica's code said by `report.finish`; the worst of its local ranks."""
        self._ledger.poll()
        said = self._ledger.facts.finishes.get((self._job.task, self._core.attempt, self._rank))
        return said and (said[0], self._redactor.redact_text(said[1]), self._redactor.redact_text(said[2]))

    def _other_replicas(self) -> set[int]:
        return other_replicas(self._folder, self._rank)

    def _note(self, message: str) -> None:
        """Tell people, once."""
        if message in self._noted:
            return
        self._noted.add(message)
        with contextlib.suppress(OSError):  # a disk without room for it shows elsewhere
            self._ledger.append(events.NOTE, message=message)

    def _scratch(self) -> Path:
        root = os.environ.get("TMPDIR", "/tmp")  # noqa: S108 - the folder below is random and ours alone
        return Path(root, f"windlass-{os.getuid()}-{self._job.token[:12]}-{self._rank}")

    def _write_control(self, command: messages.WriteControl) -> None:
        content = {
            "stop": command.is_stop_wanted,
            "checkpoint": command.checkpoint,
            "deadline": command.deadline or None,
            "reason": command.reason,
        }
        try:
            self._control.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(self._control, json.dumps(content).encode(), is_durable=False)
        except OSError as error:
            reason = error.strerror or str(error)
            self._note(f"the code cannot be told to save or stop through {self._control}: {reason}")


def supervise(job_folder: Path, rank: int, held: Held) -> int:
    """Run a supervisor; a bug of ours is written beside job.json and ends it with 70, so the guard starts it again."""
    try:
        return Supervisor(job_folder, rank, held).run()
    except BaseException:
        import traceback  # lazy: only for our own bugs

        _keep_crash(job_folder / f"supervisor-{rank}.crash", f"--- {identify(os.getpid())}\n{traceback.format_exc()}")
        raise


def _keep_crash(path: Path, text: str) -> None:
    """Write a crash behind the earlier ones, of which the newest are kept."""
    with contextlib.suppress(OSError):  # nothing may hide the crash itself
        earlier = path.read_bytes()[-_MAX_CRASH_BYTES:] if path.exists() else b""
        write_atomic(path, earlier + text.encode(errors="replace"), is_durable=False)
