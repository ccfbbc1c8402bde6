"""Following of an experiment until it ends: logs across preemptions, with limits on waiting and on silence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from windlass.backends.beaker.following import PATIENCE_S, Away, Tail
from windlass.core.clock import Clock, SystemClock
from windlass.core.dataclass import dataclass
from windlass.core.errors import UnreachableError, UsageError, WaitTimeoutError

if TYPE_CHECKING:
    from windlass.backends.beaker.values import BeakerExperiment, BeakerJob, BeakerLogLine

__all__ = ["FollowOptions", "FollowService", "follow"]

_POLL_S = 1.0
_EXPLAIN_S = 15.0
"""Seconds between queries for the reason of a wait, each of which takes several calls per replica."""
_WARN_AGAIN_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    """Options for following a launch.

    Attributes:
        timeout_s: longest wait for the end; 0 to not wait, None to wait forever.
        is_canceled_with_us: whether the end of this process, or a limit, also cancels the experiment.
    """

    show_logs: bool = False
    timeout_s: float | None = 0
    start_timeout_s: float | None = None
    inactive_timeout_s: float | None = None
    inactive_soft_timeout_s: float | None = None
    is_canceled_with_us: bool = False

    @property
    def is_wanted(self) -> bool:
        """Return True if the launch is followed after it is submitted."""
        return self.timeout_s is None or self.timeout_s > 0

    @classmethod
    def of(
        cls,
        *,
        show_logs: bool | None = None,
        timeout_s: float | None = None,
        start_timeout_s: float | None = None,
        inactive_timeout_s: float | None = None,
        inactive_soft_timeout_s: float | None = None,
        is_canceled_with_us: bool = False,
    ) -> FollowOptions:
        """Apply gantry's defaults: logs imply waiting forever, waiting shows logs, -1 means forever.

        Raises:
            UsageError: logs without waiting, or limits on silence without logs.
        """
        if timeout_s is None:
            timeout_s = -1 if show_logs else 0
        if show_logs is None:
            show_logs = timeout_s != 0
        if show_logs and timeout_s == 0:
            message = "`--show-logs` with `--timeout 0`: logs are shown only while the launch waits"
            raise UsageError(message, hint="remove `--timeout`", code="conflicting-options")
        limits = (start_timeout_s, inactive_timeout_s, inactive_soft_timeout_s)
        if timeout_s == 0 and any(limit is not None for limit in limits):
            message = "limits on starting and on silence apply only while the launch is followed"
            raise UsageError(message, hint="add `--show-logs` or `--timeout -1`", code="conflicting-options")
        return cls(
            show_logs=show_logs,
            timeout_s=None if timeout_s < 0 else timeout_s,
            start_timeout_s=start_timeout_s,
            inactive_timeout_s=inactive_timeout_s,
            inactive_soft_timeout_s=inactive_soft_timeout_s,
            is_canceled_with_us=is_canceled_with_us,
        )


class FollowService(Protocol):
    """Methods of `BeakerService` that are needed to follow an experiment."""

    def observe(self, ids: Sequence[str]) -> Mapping[str, BeakerExperiment]:
        """Return the states of experiments."""
        ...

    def jobs(self, experiment: str, *, ranks: Collection[int] = ()) -> tuple[BeakerJob, ...]:
        """Return the jobs of some ranks, or of all ranks, sorted by rank and attempt."""
        ...

    def why(self, experiment: str) -> tuple[str, ...]:
        """Return the reasons why an experiment is not running yet."""
        ...

    def logs(self, job: str, *, follow: bool = False, since_ns: int = 0, num_known: int = 0) -> Iterator[BeakerLogLine]:
        """Yield the lines of a job."""
        ...

    def cancel(self, experiment: str, reason: str = "") -> None:
        """Cancel an experiment."""
        ...


def follow(
    service: FollowService,
    experiment: str,
    following: FollowOptions,
    *,
    tell: Callable[[str], None],
    emit: Callable[[bytes], None],
    on_line: Callable[[bytes, float], None] | None = None,
    on_pause: Callable[[float], None] | None = None,
    clock: Clock | None = None,
) -> BeakerJob | None:
    """Follow the first replica until the experiment ends, and return the replica's last job.

    Args:
        on_line, on_pause: called for each line and after each poll, with monotonic time; may raise WaitTimeoutError.

    Raises:
        WaitTimeoutError: a limit of `following` is reached; the experiment is cancelled if so configured.
    """
    watch = _Watch(service, experiment, following, tell, emit, clock or SystemClock())
    try:
        return watch.run(on_line or (lambda line, now: None), on_pause or (lambda now: None))
    except WaitTimeoutError as error:
        if following.is_canceled_with_us:
            service.cancel(experiment, error.message)
            tell(f"canceled: {error.message}")
        raise


class _Watch:
    def __init__(
        self,
        service: FollowService,
        experiment: str,
        following: FollowOptions,
        tell: Callable[[str], None],
        emit: Callable[[bytes], None],
        clock: Clock,
    ) -> None:
        self.service = service
        self.experiment = experiment
        self.following = following
        self.tell = tell
        self.emit = emit
        self.clock = clock
        self.began = self.heard = clock.monotonic()
        self.warned = self.explained = float("-inf")
        self.tails: dict[str, Tail] = {}
        self.told: set[tuple[str, str]] = set()
        self.has_started = False

    def run(self, on_line: Callable[[bytes, float], None], on_pause: Callable[[float], None]) -> BeakerJob | None:
        away = Away(PATIENCE_S, now=self.clock.monotonic)
        while True:
            try:
                is_over, last = self._look(on_line)
            except UnreachableError as error:
                away.note(error)
            else:
                away.since = None
                if is_over:
                    return last
                self._check_limits()
                on_pause(self.clock.monotonic())
            self.clock.sleep(_POLL_S)

    def _look(self, on_line: Callable[[bytes, float], None]) -> tuple[bool, BeakerJob | None]:
        """Print what is new; return whether the experiment has ended, and the first replica's latest job."""
        jobs = self.service.jobs(self.experiment, ranks=(0,))
        for job in jobs[:-1]:
            self._finish(job, on_line)
        last = jobs[-1] if jobs else None
        if last is not None and last.started_ns:
            self._start(last)
            self._read(last, on_line)
        else:
            self._explain()
        seen = self.service.observe([self.experiment]).get(self.experiment)
        is_over = (seen is None or seen.is_over) and (last is None or last.is_over)
        if is_over and last is not None and last.started_ns:
            self._read(last, on_line)
        return is_over, last

    def _start(self, job: BeakerJob) -> None:
        if job.id not in self.tails:
            self.tails[job.id] = Tail(self.service, job.id)
            self.has_started = True
            self.heard = self.clock.monotonic()
            self.tell(f"attempt {job.attempt} is running" + (f" on {job.node}" if job.node else ""))

    def _finish(self, job: BeakerJob, on_line: Callable[[bytes, float], None]) -> None:
        """Read the remaining log lines of an attempt that another one has followed."""
        if ("over", job.id) in self.told or not job.is_over:
            return
        self.told.add(("over", job.id))
        if job.started_ns:
            self._start(job)
            self._read(job, on_line)
        why = job.canceled_code or (f"exit code {job.exit_code}" if job.exit_code is not None else job.status)
        self.tell(f"attempt {job.attempt} ended ({why.replace('_', ' ')}); Beaker restarts it")

    def _read(self, job: BeakerJob, on_line: Callable[[bytes, float], None]) -> None:
        if not self.following.show_logs:
            return
        for line in self.tails[job.id].read():
            self.heard = self.clock.monotonic()
            self.emit(line.message if line.message.endswith(b"\n") else line.message + b"\n")
            on_line(line.message, self.heard)

    def _explain(self) -> None:
        if self.clock.monotonic() - self.explained < _EXPLAIN_S:
            return
        self.explained = self.clock.monotonic()
        for reason in self.service.why(self.experiment):
            if ("why", reason) not in self.told:
                self.told.add(("why", reason))
                self.tell(f"waiting: {reason}")

    def _check_limits(self) -> None:
        following, now = self.following, self.clock.monotonic()
        waited, silent = now - self.began, now - self.heard
        if following.timeout_s is not None and waited > following.timeout_s:
            raise _over(f"the experiment did not end within {following.timeout_s:g} s")
        if not self.has_started:
            if following.start_timeout_s is not None and waited > following.start_timeout_s:
                raise _over(f"the experiment did not start within {following.start_timeout_s:g} s")
            return
        if following.inactive_timeout_s is not None and silent > following.inactive_timeout_s:
            raise _over(f"the experiment printed nothing for {following.inactive_timeout_s:g} s")
        soft = following.inactive_soft_timeout_s
        if soft is not None and silent > soft and now - self.warned > max(soft, _WARN_AGAIN_S):
            self.warned = now
            self.tell(f"warning: the experiment printed nothing for {silent:.0f} s")


def _over(message: str) -> WaitTimeoutError:
    return WaitTimeoutError(message, hint="windlass beaker show EXPERIMENT shows its state", code="timed-out")
