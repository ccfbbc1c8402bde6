"""Settings of a gang, as its leader's core needs them."""

from __future__ import annotations

from windlass.core.dataclass import dataclass
from windlass.record.retry import Budgets

__all__ = ["GangConfig"]


@dataclass(frozen=True)
class GangConfig:
    """Settings of a gang, taken from its job.

    Attributes:
        per_job_s: walltime of an attempt. The next attempt in the same job gets the full time again, instead of a new
            job of a chain. A leader that takes over continues counting.
        num_heads: the first `num_heads` replicas run the task, and the rest serve them; if 0, all run it.
        time_s: total running time of all attempts of the task, without the time between them.
        incarnation: start of the job by its scheduler; empty without a scheduler. Otherwise an attempt that this job
            cannot continue (walltime, a lost node) is left to the next link, and the leader waits until an attempt of
            an earlier start is certainly over.
        link: number of this link.
        max_links: maximum number of links; 0 if the client queues the next job.
        ends_at: wall time at which the scheduler ends this link; if 0, `per_job_s` applies to each attempt.
        notice_s: time between the scheduler's notice and its kill.
        is_evaluating: whether each attempt evaluates one checkpoint, which the gate names.
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
    is_evaluating: bool = False
