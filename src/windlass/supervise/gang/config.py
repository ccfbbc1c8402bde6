"""The terms of a gang: what the job allows it, as its leader's core must know it."""

from __future__ import annotations

from windlass.core.dataclass import dataclass
from windlass.record.retry import Budgets

__all__ = ["GangConfig"]


@dataclass(frozen=True)
class GangConfig:
    """What the leader needs to know of the job.

    Attributes:
        per_job_s: walltime of an attempt: the one that follows in the same job has as much again, in place of the
            next job of a chain. A leader that takes over goes on counting.
        num_heads: so many first replicas run the task, and the others serve them; 0: all run it.
        time_s: running time of the task, all its attempts together; the time between them does not count.
        incarnation: the start of the job by its scheduler; empty where there is none. With one, an attempt that this
            job cannot go on with (walltime, a lost node) is left to the next link, and an attempt of an earlier start
            is waited for until it is certainly over.
        link: number of this link; `max_links`: most there may be, 0: the client queues the next job.
        ends_at: wall time at which the scheduler ends this link; 0: `per_job_s` counts for each attempt.
        notice_s: time between the scheduler's notice and its kill.
    """

    job: int
    num_replicas: int
    num_heads: int = 0
    budgets: Budgets = Budgets()
    ready_timeout_s: float = 600.0
    grace_s: float = 30.0
    per_job_s: float | None = None
    time_s: float | None = None
    can_respawn: bool = False
    incarnation: str = ""
    link: int = 1
    max_links: int = 0
    ends_at: float = 0.0
    notice_s: float = 30.0
