"""What a seed decides of a site: how its scheduler behaves, how attempts are fenced, what goes wrong there."""

from __future__ import annotations

from random import Random

from windlass.core.dataclass import dataclass
from windlass.supervise.job import Fencing

__all__ = ["SITE_CALM_AT_S", "SitePlan", "draw_site", "draw_site_events"]

SITE_CALM_AT_S = 400.0
"""Virtual time after which nothing goes wrong at a site any more, but for walltimes that end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePlan:
    """A Slurm site.

    Attributes:
        mode: `successor` or `requeue`.
        can_submit: whether a compute node may queue links; else the client queues all of them.
        num_spare: nodes more than all tasks need at once.
        queue_s: longest time that a link waits in the queue although there are nodes.
        late_s: by how much the scheduler's notices and kills come late at most.
        down_after_s: a node that does not answer is down after so long.
        hold_s: a job that is put back into the queue waits there for so long at least.
        is_singleton_early: a job that still has processes to be ended counts as over for `singleton`.
        has_end_time: the scheduler tells a job when it ends (22.05 does not).
        remembers_s: how long the controller knows a job that has ended.
        clients_leave_at: from then on nobody types anything any more; negative: somebody always does.
    """

    fencing: Fencing
    mode: str
    can_submit: bool
    num_links: int
    num_spare: int
    queue_s: float
    notice_s: float
    kill_wait_s: float
    signal_before_s: float
    late_s: float
    down_after_s: float
    hold_s: float
    is_singleton_early: bool
    has_accounting: bool
    has_end_time: bool
    remembers_s: float
    clients_leave_at: float


_FENCINGS = (
    Fencing(renew_s=3.0, stop_s=30.0, kill_s=90.0, quiet_s=40.0),
    Fencing(renew_s=2.0, stop_s=16.0, kill_s=50.0, quiet_s=20.0),
    Fencing(renew_s=4.0, stop_s=45.0, kill_s=120.0, quiet_s=55.0),
)


def draw_site(random: Random) -> SitePlan:
    """A site of a seed."""
    can_submit = random.random() < 0.85
    return SitePlan(
        fencing=random.choice(_FENCINGS),
        mode="requeue" if random.random() < 0.15 else "successor",
        can_submit=can_submit,
        num_links=random.choice((4, 8, 30, 30)) if can_submit else 6,
        num_spare=random.choice((1, 1, 2)),
        queue_s=random.choice((0.0, 2.0, 20.0, 60.0)),
        notice_s=random.choice((10.0, 30.0)),
        kill_wait_s=random.choice((2.0, 10.0)),
        signal_before_s=random.choice((0.0, 0.0, 20.0)),
        late_s=random.choice((0.0, 15.0, 60.0)),
        down_after_s=random.choice((8.0, 20.0)),
        hold_s=random.choice((2.0, 15.0)),
        is_singleton_early=random.random() < 0.6,
        has_accounting=random.random() < 0.5,
        has_end_time=random.random() < 0.5,
        remembers_s=random.choice((60.0, 300.0)),
        clients_leave_at=random.uniform(1.0, 120.0) if random.random() < 0.5 else -1.0,
    )


_EVENTS = {
    "power-cut": 4,
    "partition": 12,
    "stall": 8,
    "stall-all": 2,
    "preempt": 6,
    "requeue": 3,
    "scancel": 2,
    "amnesia": 4,
    "controller-away": 3,
    "isolate": 4,
    "lossy": 3,
    "kill-supervisor": 4,
    "kill-guard": 2,
    "kill-fencing-agent": 2,
    "kill-srun": 3,
    "kill-step-daemon": 3,
    "kill-process": 2,
    "hide": 1,
    "kill-client": 2,
}

_QUEUE_FAULTS = 0.3
"""Share of the sites whose controller forgets cancels, or a whole job that runs."""


def draw_site_events(random: Random) -> tuple[tuple[float, str, int], ...]:
    """What goes wrong and when: often one thing alone, so that its cause can be judged."""
    number = random.choices((0, 1, 2, 3, 5, 8), (1, 6, 3, 3, 3, 2))[0]
    latest = random.choice((60.0, 150.0, SITE_CALM_AT_S - 100.0))
    names, weights = list(_EVENTS), list(_EVENTS.values())
    found = [
        (random.uniform(3.0, latest), random.choices(names, weights)[0], random.getrandbits(16)) for _ in range(number)
    ]
    own = Random(f"queue/{found}")  # of its own, so that the other draws stay what they are
    if own.random() < _QUEUE_FAULTS:
        found += [
            (own.uniform(3.0, latest), what, own.getrandbits(16)) for what in ("deaf", own.choice(("deaf", "orphan")))
        ]
    return tuple(sorted(found))
