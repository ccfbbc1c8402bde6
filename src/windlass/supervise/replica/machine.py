"""Implementation of a supervisor's interfaces on Linux: the processes on this machine, and the job's shared files."""

from __future__ import annotations

import os
import selectors
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Callable

from windlass.core.clock import Clock
from windlass.core.errors import AccessError
from windlass.core.process import ProcessId, is_alive
from windlass.record.frames import Record
from windlass.record.redact import DiscardingRedactor, Redactor
from windlass.supervise.fencing.fence import FenceDecision
from windlass.supervise.fencing.guard import GuardContext, is_gone, killed_replica, other_replicas
from windlass.supervise.gang.address import own_address, own_host
from windlass.supervise.gang.connection import SocketNetwork
from windlass.supervise.gang.election import Claims, Leadership, publish_claim, read_claims
from windlass.supervise.gang.incarnation import Incarnation
from windlass.supervise.gang.journal_view import RunJournalView
from windlass.supervise.gang.messages import Journal, Order, WriteControl
from windlass.supervise.job import JobDocument
from windlass.supervise.leases import holder_of_this_process
from windlass.supervise.ports import Ports
from windlass.supervise.remote.delivery import secret_values, secret_variables
from windlass.supervise.replica.control import ControlFile
from windlass.supervise.replica.preflight import preflight
from windlass.supervise.replica.scratch import clear_scratch
from windlass.supervise.replica.user_command import user_command
from windlass.supervise.replica.user_process import UserProcess, sweep_left_overs

if TYPE_CHECKING:
    from windlass.supervise.chain.links import LinkManager
    from windlass.supervise.gang.starter import Starter

__all__ = ["JobFiles", "LinuxProcesses", "ports_of"]


class LinuxProcesses:
    """A replica's processes on this machine; see `windlass.supervise.ports.Processes`.

    Args:
        context: handles that the guard keeps for all its supervisors.
        selector: selector of the loop that calls `on_output`.
    """

    def __init__(
        self,
        job: JobDocument,
        job_folder: Path,
        rank: int,
        context: GuardContext,
        *,
        incarnation: Incarnation,
        clock: Clock,
        selector: selectors.BaseSelector,
    ) -> None:
        self._job, self._folder, self._rank, self._context = job, job_folder, rank, context
        self._incarnation, self._clock, self._selector = incarnation, clock, selector
        self._place = incarnation.folder(job_folder)
        self.host = own_host()
        self.address = job.site.host_address or own_address(job.site.interface)
        self.secret_problem = ""
        self._redactor = self._make_redactor()
        self._control = ControlFile(job, rank, incarnation)
        self._is_listening = False
        self._starter: Starter | None = None

    @property
    def holder(self) -> str:
        """See `Processes.holder`."""
        return holder_of_this_process(self._context.guard_pid)

    def _make_redactor(self) -> Redactor:
        """Return the redactor for the job's secrets; after the end of the task there are none."""
        try:
            return Redactor(secret_values(self._job))
        except AccessError as error:
            self.secret_problem = str(error)
            return DiscardingRedactor()

    def unfit(self) -> str:
        """See `Processes.unfit`."""
        return preflight(self._job, self._incarnation, self.address)

    def decision(self) -> FenceDecision:
        """See `Processes.decision`."""
        return self._context.decision()

    # --- user code -----------------------------------------------------------------------------------------------

    def spawn(self, attempt: int, order: Order) -> tuple[UserProcess, str, list[str]]:
        """See `Processes.spawn`."""
        if self.secret_problem:
            raise AccessError(self.secret_problem, code="secret-missing")
        secrets = secret_variables(self._job)
        for folder in (self._job.paths.out, self._job.paths.checkpoints):
            os.makedirs(folder, exist_ok=True)
        process = self._user_process(attempt)
        ours = self._control.variables
        run = user_command(self._job, self._folder, self._rank, attempt, order, ours=ours, secrets=secrets)
        return process, process.spawn(run.argv, run.env), run.words

    def adopt(self, attempt: int, identity: str) -> tuple[UserProcess, bool]:
        """See `Processes.adopt`."""
        process = self._user_process(attempt)
        process.adopt(identity)
        has_same_guard = self._context.guard_pid == os.getppid()
        return process, bool(identity) and has_same_guard and is_alive(ProcessId.parse(identity))

    def _user_process(self, attempt: int) -> UserProcess:
        return UserProcess(self._job, self._rank, attempt, self._context, self._redactor, self._clock, self.host)

    def sweep(self, identities: Sequence[str]) -> None:
        """See `Processes.sweep`."""
        sweep_left_overs(self._job, self._rank, self._context, identities)

    def clear_scratch(self, attempt: int) -> str:
        """See `Processes.clear_scratch`."""
        logs = Path(self._job.paths.run_dir) / "logs" / str(attempt) / self._job.task
        return clear_scratch(self._job.token, self._rank, attempt, logs, self._redactor)

    def request(self, command: WriteControl) -> str:
        """See `Processes.request`."""
        return self._control.write(command)

    def redact(self, text: str) -> str:
        """See `Processes.redact`."""
        return self._redactor.redact_text(text)

    def watch_output(self, on_output: Callable[[], None] | None) -> None:
        """See `Processes.watch_output`."""
        if on_output is not None and not self._is_listening:
            self._selector.register(self._context.log_pipe.read_fd, selectors.EVENT_READ, on_output)
        elif on_output is None and self._is_listening:
            self._selector.unregister(self._context.log_pipe.read_fd)
        self._is_listening = on_output is not None

    # --- other replicas ------------------------------------------------------------------------------------------

    def others(self) -> set[int]:
        """See `Processes.others`."""
        return other_replicas(self._place, self._rank) | self._context.watchers()

    def is_gone(self, rank: int) -> bool:
        """See `Processes.is_gone`."""
        return is_gone(self._place, rank)

    def killed_replica(self, rank: int) -> str:
        """See `Processes.killed_replica`."""
        return killed_replica(self._place, rank)

    def start_replica(self, rank: int) -> str:
        """See `Processes.start_replica`."""
        if not self.is_gone(rank):
            return ""
        if self._starter is None:
            from windlass.supervise.gang.starter import Starter  # lazy: only the leader of a gang starts replicas

            self._starter = Starter(self._folder)
        return self._starter.start(rank)

    def stop_starting(self) -> None:
        """See `Processes.stop_starting`."""
        if self._starter is not None:
            self._starter.close()

    @property
    def helpers(self) -> set[int]:
        """See `Processes.helpers`."""
        return {self._starter.pid} - {0} if self._starter is not None else set()

    def close(self) -> None:
        """See `Processes.close`."""
        self._control.remove()


class JobFiles:
    """A job's files on the file system that its replicas share; see `windlass.supervise.ports.Disk`."""

    def __init__(self, job: JobDocument, job_folder: Path, rank: int, incarnation: Incarnation, clock: Clock) -> None:
        self._job, self._folder, self._rank = job, job_folder, rank
        self._incarnation, self._clock = incarnation, clock

    def open_journal(self, on_record: Callable[[Record], None]) -> Journal:
        """See `Disk.open_journal`."""
        journal, name = Path(self._job.paths.run_dir) / "journal", self._incarnation.name
        return RunJournalView(journal, self._job.task, self._rank, self._clock, incarnation=name, on_record=on_record)

    def claims(self) -> Claims:
        """See `Disk.claims`."""
        return read_claims(self._folder, self._incarnation.name)

    def publish_claim(self, leadership: Leadership) -> bool:
        """See `Disk.publish_claim`."""
        return publish_claim(self._folder, leadership)


def ports_of(
    job: JobDocument,
    job_folder: Path,
    rank: int,
    context: GuardContext,
    *,
    incarnation: Incarnation,
    clock: Clock,
    selector: selectors.BaseSelector,
) -> Ports:
    """Return all of a replica's interfaces on this machine, for an event loop around `selector`."""

    def make_links(journal: Journal, again: Callable[[], None]) -> LinkManager | None:
        if not incarnation.name:
            return None
        from windlass.supervise.chain.background_calls import ForkedCalls  # lazy: on one machine there are no links
        from windlass.supervise.chain.links import LinkManager

        is_slow = job.chain.scheduler == "slurm"
        calls = ForkedCalls(selector, again) if is_slow else None
        return LinkManager(job, job_folder, incarnation, journal, calls=calls)

    machine = LinuxProcesses(job, job_folder, rank, context, incarnation=incarnation, clock=clock, selector=selector)
    network = SocketNetwork(rank, job.token, machine.address, selector, num_replicas=job.num_replicas)
    disk = JobFiles(job, job_folder, rank, incarnation, clock)
    return Ports(clock=clock, processes=machine, network=network, disk=disk, make_links=make_links)
