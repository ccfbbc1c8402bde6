"""Shell around `GangCore`: the leader's socket, the gate, and the cleanup at the end of a task."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Callable

from windlass.core.errors import WindlassError
from windlass.record import events
from windlass.record.causes import Cause
from windlass.record.manifest import commit_manifest
from windlass.record.retry import Budgets
from windlass.record.state import State
from windlass.supervise.gang.core import GangConfig, GangCore
from windlass.supervise.gang.election import Leadership
from windlass.supervise.gang.incarnation import LOCAL, Incarnation
from windlass.supervise.gang.messages import Command, Journal, Order, Phase, ReplicaStatus, Step
from windlass.supervise.gang.start_conditions import StartGate
from windlass.supervise.gang.stragglers import Stragglers
from windlass.supervise.job import JobDocument

if TYPE_CHECKING:
    from windlass.supervise.gang.evaluator import Evaluator
    from windlass.supervise.ports import Ports

__all__ = ["Leader"]

_ENTRIES_EVERY_S = 5.0
_REPEAT_PER_REPLICA_S = 0.01
"""Interval of repeated orders, per replica, so that at most 100 replicas reply per second."""

_ASK_SRUN_AFTER_S = 3.0
"""Delay before srun's output counts: replicas of a killed job die at different times, so a death alone proves
nothing."""


class Leader:
    """Leader of one task, run by the supervisor of one of its replicas.

    Args:
        job_folder: the job that holds the leases.
        incarnation: the start of the job that this replica belongs to.
        run: executes the core's commands.
    """

    def __init__(
        self,
        job: JobDocument,
        job_folder: Path,
        ports: Ports,
        *,
        incarnation: Incarnation = LOCAL,
        epoch: int,
        journal: Journal,
        run: Callable[[list[Command]], None],
    ) -> None:
        self.epoch = epoch
        self._job, self._journal, self._run, self._incarnation = job, journal, run, incarnation
        self._clock, self._processes, self._disk = ports.clock, ports.processes, ports.disk
        self._holder = self._processes.holder
        self._gate = StartGate(job, job_folder, self._holder)
        self._links = ports.make_links(journal, self.tick)
        self._evaluator = _evaluator(job)
        self._server = ports.network.as_leader(self.on_status, self._on_lost) if job.num_replicas > 1 else None
        self._stragglers = Stragglers(job.site.straggler)
        self._entries: dict[str, float] = {}
        self._ended: tuple[int, set[int]] = (0, set())
        self._entries_at = 0.0
        self._sent_at = float("-inf")
        gang = GangConfig(
            job=job.job,
            num_replicas=job.num_replicas,
            num_heads=job.command.num_heads,
            budgets=Budgets(job.settings.interrupted, job.settings.failed),
            ready_timeout_s=job.settings.ready_timeout_s,
            grace_s=job.settings.grace_s,
            per_job_s=job.queue.time_s or job.settings.per_job_s,
            time_s=job.settings.time_s,
            can_respawn=job.num_replicas > 1 and job.is_on_one_machine,
            is_evaluating=job.settings.evaluates is not None,
            **self._links.of_gang() if self._links is not None else {},
        )
        self.core = GangCore(gang, epoch=epoch, journal=journal, now=self._clock.monotonic(), wall=self._clock.now())

    @property
    def wants_quick_tick(self) -> bool:
        """Return whether a decision is due in less than a second."""
        return self.core.is_settling or self.core.order.level > 0

    @property
    def helpers(self) -> set[int]:
        """Return the pids of the leader's helper processes, which do not end with an attempt."""
        return self._processes.helpers | (self._links.helpers if self._links is not None else set())

    def is_job_over(self, now: float) -> bool:
        """See `LinkManager.is_job_over`; False if nothing is left to end."""
        return self._links is not None and not self.core.is_over and self._links.is_job_over(now)

    def claim(self, rank: int) -> bool:
        """Publish this leader's claim; return False if another replica was faster."""
        if self._server is None and self._links is None:
            return True
        port = self._server.port if self._server is not None else 0
        host, address = self._processes.host, self._processes.address
        leadership = Leadership(self.epoch, rank, host, address, port, self._holder, self._incarnation.name)
        return self._disk.publish_claim(leadership)

    def start(self) -> None:
        """Start to lead; a running attempt keeps its leases."""
        newest = self._journal.task().newest_attempt
        if newest is not None and newest.job == self._job.job and newest.started_at and newest.end is None:
            problem = self._gate.take()
            if problem:
                self._note(f"attempt {newest.number} lost its leases: the task {problem}")
        self._run(self.core.start(self._clock.monotonic()))
        self.tick()

    def on_status(self, status: ReplicaStatus) -> None:
        """Handle a replica's status, from the socket or from this process."""
        if status.notice and self._links is not None:
            status = self._links.explain(status, self._clock.monotonic())
        if self._job.settings.checkpoint_pattern and not self.core.is_over:
            self._check_entries_when_ended(status)
        slow = self._stragglers.look(status.attempt, status.rank, status.step_s)
        if slow:
            self._note(f"replica {status.rank} on {status.host} {slow}")
        self._run(self.core.on_status(status, self._clock.monotonic()))

    def on_superseded(self) -> None:
        """Handle a restart of the job by the scheduler."""
        self._run(self.core.on_superseded(self._clock.monotonic()))

    def _on_lost(self, rank: int) -> None:
        self._run(self.core.on_disconnected(rank, self._clock.monotonic()))

    def tick(self) -> None:
        """Check the gate, the journal and the deadlines."""
        now = self._clock.monotonic()
        if self._server is not None:
            self._server.tick()
        if self.core.is_waiting:
            self._check_gate(now)
        elif self._server is not None and not self.core.is_over:
            self._check_dead_replicas(now)
            if now >= self._sent_at + _REPEAT_PER_REPLICA_S * self._job.num_replicas:
                self.send(self.core.order)
            if self.core.order.step is not Step.GATHER:
                self._processes.stop_starting()
        if self._links is not None and not self.core.is_over:
            self._links.tick(now)
        self._run(self.core.on_tick(now))
        if self._evaluator is not None and not self.core.is_over and self._evaluator.is_due(now):
            self._journal.poll()
            self._evaluator.look(self._journal)  # an evaluation that takes long must not hold all later checkpoints
        if (
            self._job.settings.checkpoint_pattern
            and not self.core.is_over
            and now >= self._entries_at + _ENTRIES_EVERY_S
        ):
            self._entries_at = now
            self._check_entries()

    def _check_dead_replicas(self, now: float) -> None:
        """Stop waiting for replicas that are known to be dead."""
        missed = self.core.membership.missed(now, _ASK_SRUN_AFTER_S)
        if missed and self._incarnation.name and self._job.chain.scheduler == "slurm":
            self._check_srun_output(missed, now)
        if not self._job.is_on_one_machine:
            return
        for rank in self.core.membership.absent:
            if self._processes.is_gone(rank):
                self.core.membership.on_gone(rank, now, self._processes.killed_replica(rank))

    def _check_srun_output(self, missed: list[int], now: float) -> None:
        from windlass.supervise.slurm.srun_output import SrunOutput  # lazy: only Slurm jobs have one

        for rank in (
            SrunOutput(Path(self._incarnation.output), self._incarnation.output_begin).killed().intersection(missed)
        ):
            self.core.membership.on_gone(rank, now, f"all processes of replica {rank}")

    def _check_gate(self, now: float) -> None:
        self._journal.poll()
        if self.core.open_attempt and self._links is not None:
            gone = self._links.check_open_attempt(self.core.open_attempt, now)
            if gone is not None:
                rank = self._links.first_silent(self.core.open_attempt)
                self._run(self.core.on_open_attempt_over(*gone, now, rank))
            return
        failed = self._gate.failed_upstream(self._journal.facts)
        if failed:
            message = f"upstream task {failed} did not succeed"
            self._run(self.core.on_verdict(State.FAILED, str(Cause.SIBLING_FAILED), message, now))
            return
        broken = self._gate.failed_environment(now)
        if broken:
            self._run(self.core.on_verdict(State.FAILED, str(Cause.SETUP_FAILED), broken, now))
            return
        evaluates = None
        if self._evaluator is not None:
            chosen = self._evaluator.look(self._journal)
            if chosen.verdict is not None:
                self._run(self.core.on_verdict(chosen.verdict, chosen.cause, chosen.message, now))
                return
            if chosen.reason:
                self._gate.close()  # others may use the resources until there is something to evaluate
                self._run(self.core.on_gate(chosen.reason, now))
                return
            evaluates = self._evaluator.start_of(chosen.checkpoint)
        reason = self._gate.reason(self._journal.facts)
        if not reason and self._links is not None and not self._links.queue_next(now):
            return  # called again with the reply, before user code runs: a dying job must not queue links
        self._run(self.core.on_gate(reason, now, evaluates))

    def _check_entries_when_ended(self, status: ReplicaStatus) -> None:
        """After the last process of an attempt has ended, check for checkpoints."""
        if status.attempt != self.core.order.attempt or status.phase is not Phase.ENDED:
            return
        attempt, ended = self._ended
        self._ended = (status.attempt, {status.rank, *(ended if attempt == status.attempt else ())})
        if len(self._ended[1]) == self._job.num_replicas:
            self._check_entries()
            self._check_entries()

    def _check_entries(self) -> None:
        """Record files and folders that match the checkpoint pattern and have stopped changing."""
        folder = Path(self._job.paths.checkpoints)
        recorded = self._journal.task().entries
        for path in _matches(folder, self._job.settings.checkpoint_pattern):
            name = str(path.relative_to(folder))
            if name in recorded:
                continue
            changed = _changed_at(path)
            if changed and changed == self._entries.get(name):
                self._journal.append(events.PROGRESS_ENTRY, attempt=self.core.order.attempt, path=name)
            self._entries[name] = changed

    def send(self, order: Order) -> Order:
        """Send the order to all other replicas; return it with the leased GPUs."""
        order = order.but(gpus=",".join(self._gate.gpus))
        if self._server is not None:
            self._sent_at = self._clock.monotonic()
            self._server.send(order)
        return order

    def respawn(self, rank: int) -> None:
        """Start the guard of a missing replica."""
        problem = self._processes.start_replica(rank)
        if problem:
            self._note(f"cannot start replicas: {problem}")

    def release(self) -> None:
        """Clean up after the task: release its leases and record its outputs.

        If the run is over, also remove its secrets.
        """
        self._journal.poll()
        facts = self._journal.facts
        if self._job.paths.delivery and facts.state.is_terminal:
            self._remove_delivery()
        try:
            self._gate.close()
        except OSError as error:  # the lease ends with this job's processes
            self._note(f"cannot release the leases: {error}")
        if self._links is not None:
            self._links.cancel_rest()
            self._links.release_dependents()
        is_new = self._job.task not in facts.outputs
        if is_new and facts.task(self._job.task).state is State.SUCCEEDED and os.path.isdir(self._job.paths.out):
            self._record_outputs()
        if self._links is not None:
            self._links.end_job()

    def hand_over(self) -> None:
        """Leave the task to the next link."""
        if self._links is not None:
            self._links.leave()
            if self._job.chain.mode != "requeue":
                self._links.end_job()

    def _remove_delivery(self) -> None:
        from windlass.supervise.remote.delivery import remove_delivery  # lazy: most jobs have no secrets

        try:
            remove_delivery(Path(self._job.paths.delivery))
        except OSError as error:
            self._note(f"cannot remove the secrets: {error}")

    def _record_outputs(self) -> None:
        try:
            manifest = commit_manifest(Path(self._job.paths.out), is_beside=True)
            self._journal.append(
                events.OUTPUTS,
                attempt=self.core.order.attempt,
                num_files=len(manifest.entries),
                bytes=manifest.num_bytes,
                digest=manifest.digest,
            )
        except (OSError, WindlassError) as error:
            self._note(f"cannot record the outputs of task {self._job.task}: {error}")

    def _note(self, message: str) -> None:
        with contextlib.suppress(OSError):  # informational: a full disk is reported elsewhere
            self._journal.append(events.NOTE, message=message)

    def close(self) -> None:
        """Close the socket and stop background calls."""
        self._processes.stop_starting()
        if self._server is not None:
            self._server.close()
        if self._links is not None:
            self._links.close()


def _evaluator(job: JobDocument) -> Evaluator | None:
    if job.settings.evaluates is None:
        return None
    from windlass.supervise.gang.evaluator import Evaluator as Made  # lazy: few tasks evaluate checkpoints

    return Made(job)


def _matches(folder: Path, pattern: str) -> list[Path]:
    """Return the paths that match; an invalid pattern, which the spec rejects, matches nothing."""
    try:
        return sorted(folder.glob(pattern))
    except (OSError, ValueError, NotImplementedError, IndexError):
        return []


def _changed_at(path: Path) -> float:
    """Return when a file, or anything in a folder, last changed; 0 if it is being deleted."""
    try:
        return max(found.lstat().st_mtime for found in [path, *path.rglob("*")])
    except OSError:
        return 0.0
