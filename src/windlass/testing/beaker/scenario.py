"""Fault injection: each method prepares one fault of the fake Beaker; most faults apply a number of times.

Faults of the transport (`refuse`, `delay`, `lose_next_reply`, `expire_token`) are named by the operation: the gRPC
method (`GetWorkload`, `CancelWorkloads`), or for HTTP one of `CreateExperiment`, `WriteSecret`, `ReadSecret`,
`CreateDataset`, `GetDatasetStorage`, `CommitDataset`, `WriteDatasetFile`, `ReadDatasetFile`, `CreateImage`,
`CommitImage`. The name `*` means any.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import field
from typing import Literal

from windlass.core.dataclass import dataclass
from windlass.testing.beaker.records import CancelCode, StoredExperiment, StoredJob

__all__ = ["Fault", "Scenario", "Trigger"]

How = Literal["drop", "hang"]


@dataclass(slots=True, kw_only=True)
class Fault:
    """Fault to inject into the next calls of a method.

    Attributes:
        status: HTTP status of a rejection, which determines the gRPC code; 0 if the call is not rejected.
        lost: how the reply is lost; empty if it is not.
    """

    method: str
    times: int
    status: int = 0
    message: str = ""
    delay_s: float = 0.0
    lost: How | Literal[""] = ""


@dataclass(slots=True, kw_only=True)
class Trigger:
    """Action to take on a running job: when it prints a line, after some time, or as soon as it runs."""

    code: CancelCode
    reason: str
    is_sudden: bool
    resumes: bool | None
    experiment: str
    rank: int
    pattern: re.Pattern[bytes] | None
    after_s: float
    times: int

    def fits(self, job: StoredJob) -> bool:
        """Return whether the trigger applies to this job and can still fire."""
        experiment = job.task.experiment
        return (
            self.times > 0
            and job.task.rank == self.rank
            and (not self.experiment or self.experiment in (experiment.id, experiment.name))
        )


@dataclass(kw_only=True)
class Scenario:
    """Faults of one fake Beaker.

    Attributes:
        grace_s: seconds between SIGTERM and SIGKILL, for canceled and preempted jobs.
        queue_reason: why nothing is scheduled; empty if jobs are scheduled immediately.
    """

    lock: threading.RLock
    wake: Callable[[], None]
    stop_server: Callable[[], None]
    start_server: Callable[[], None]
    make_small: Callable[[str, int], None]
    grace_s: float = 5.0
    queue_reason: str = ""
    is_token_expired: bool = False
    triggers: list[Trigger] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    unready_ranks: set[int] = field(default_factory=set)

    def preempt(
        self,
        experiment: StoredExperiment | str = "",
        *,
        rank: int = 0,
        after: str = "",
        after_s: float = 0.0,
        times: int = 1,
        code: CancelCode = CancelCode.SYSTEM_PREEMPTION,
        reason: str = "preempted by a job of higher priority",
    ) -> None:
        """Preempt a replica as soon as it runs, when it prints a line that matches `after`, or after some seconds.

        Args:
            experiment: the record, its id or its name; empty for whichever comes first.
            times: how many of its jobs, one after the other.
        """
        self._trigger(code, reason, False, None, experiment, rank, after, after_s, times)

    def lose_node(
        self,
        experiment: StoredExperiment | str = "",
        *,
        rank: int = 0,
        after: str = "",
        after_s: float = 0.0,
        resumes: bool | None = None,
    ) -> None:
        """Simulate the loss of a replica's node: all its processes are killed with code `node_unavailable`.

        Args:
            resumes: whether a new job follows; None for the rule after a preemption (`autoResume`).
        """
        reason = "the node is no longer available"
        self._trigger(CancelCode.NODE_UNAVAILABLE, reason, True, resumes, experiment, rank, after, after_s, 1)

    def never_ready(self, rank: int) -> None:
        """Keep the replica with this rank from becoming ready, until `all_ready` is called."""
        with self.lock:
            self.unready_ranks.add(rank)

    def all_ready(self) -> None:
        """End the effect of `never_ready`."""
        with self.lock:
            self.unready_ranks.clear()
        self.wake()

    def slot_limit(self, reason: str) -> None:
        """Stop scheduling jobs and show the reason in their events; an empty reason resumes scheduling."""
        with self.lock:
            self.queue_reason = reason
        self.wake()

    def refuse(self, method: str, message: str, *, status: int = 400, times: int = 1) -> None:
        """Reject the next calls of a method with an error, without carrying them out."""
        self._fault(Fault(method=method, times=times, status=status, message=message))

    def delay(self, method: str, seconds: float, *, times: int = 1) -> None:
        """Delay the next calls of a method by some seconds."""
        self._fault(Fault(method=method, times=times, delay_s=seconds))

    def lose_next_reply(self, method: str, *, how: How = "drop", times: int = 1) -> None:
        """Carry out the next call of a method, but lose the reply.

        Args:
            how: "drop" closes the connection, "hang" leaves the client waiting.
        """
        self._fault(Fault(method=method, times=times, lost=how))

    def expire_token(self) -> None:
        """Reject the token on both transports until `renew_token` is called."""
        self.is_token_expired = True

    def renew_token(self) -> None:
        """Accept the token again."""
        self.is_token_expired = False

    def fill_disk(self, where: str = "results", *, size_bytes: int = 64 * 1024) -> None:
        """Limit the disk for new jobs' results, or for a Weka bucket, to this size. Needs root."""
        self.make_small(where, size_bytes)

    def stop(self) -> None:
        """Stop the servers; jobs continue, and all state is kept."""
        self.stop_server()

    def start(self) -> None:
        """Start the servers again, on the same ports."""
        self.start_server()

    def take_fault(self, method: str) -> Fault | None:
        """Return the next fault for a call of this method, and count it as used."""
        with self.lock:
            for fault in self.faults:
                if fault.times > 0 and fault.method in (method, "*"):
                    fault.times -= 1
                    return fault
        return None

    def _fault(self, fault: Fault) -> None:
        with self.lock:
            self.faults.append(fault)

    def _trigger(
        self,
        code: CancelCode,
        reason: str,
        is_sudden: bool,
        resumes: bool | None,
        experiment: StoredExperiment | str,
        rank: int,
        after: str,
        after_s: float,
        times: int,
    ) -> None:
        trigger = Trigger(
            code=code,
            reason=reason,
            is_sudden=is_sudden,
            resumes=resumes,
            experiment=experiment if isinstance(experiment, str) else experiment.id,
            rank=rank,
            pattern=re.compile(after.encode()) if after else None,
            after_s=after_s,
            times=times,
        )
        with self.lock:
            self.triggers.append(trigger)
        self.wake()
