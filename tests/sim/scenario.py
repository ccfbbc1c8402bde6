"""What a seed decides before time begins: the tasks, what their code will do, what people ask, what goes wrong."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tests.sim.disk import Fate
from tests.sim.site.plan import SitePlan, draw_site, draw_site_events
from windlass.core.dataclass import dataclass
from windlass.record.retry import Budgets

__all__ = ["Behaviour", "Ending", "FaultPlan", "Program", "Scenario", "TaskPlan", "draw", "is_at_site"]

CALM_AT_S = 150.0
"""Virtual time after which nothing goes wrong any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How one process of one attempt ends if nobody disturbs it.

    Attributes:
        kind: `done`, `code`, `signal`, `no-start`, or `hang` (code that reports nothing fails: nobody could tell).
        number: exit code or signal.
        progress: share of the remaining steps done before.
    """

    kind: str
    number: int = 0
    progress: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """What one process does: its ending and how it takes a request to stop."""

    ending: Ending
    on_term: str
    term_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The user's code of a task.

    Attributes:
        checkpoint_every: steps between checkpoints; 0 for none.
        is_reporting: it reports its steps.
        is_coupled: ranks wait for one another, so the others hang when one is gone.
        is_cooperating: it asks should_stop() and saves.
        is_cascading: when a rank fails, the others abort a moment later.
        has_helper: it starts a process that outlives it.
        failure_rate: share of attempts that do not end well by themselves.
    """

    seed: int
    num_steps: int
    step_s: float
    checkpoint_every: int
    is_reporting: bool
    is_coupled: bool
    is_cooperating: bool
    is_cascading: bool
    has_helper: bool
    failure_rate: float

    def behaviour(self, task: str, attempt: int, rank: int, num_replicas: int) -> Behaviour:
        """What the process of a replica does; a function of these names and the seed alone."""
        gang = Random(f"{self.seed}/{task}/{attempt}")
        is_bad = gang.random() < self.failure_rate
        culprit = gang.randrange(num_replicas)
        bad = gang.choices(_BAD, _BAD_WEIGHTS)[0]
        own = Random(f"{self.seed}/{task}/{attempt}/{rank}")
        ending = Ending(kind="done")
        if is_bad and rank == culprit:
            ending = Ending(kind=bad[0], number=bad[1], progress=own.random())
        term = own.choices(("exit", "save", "ignore", "finish"), (5, 3, 1, 1))[0]
        return Behaviour(ending=ending, on_term=term, term_s=own.uniform(0.05, 3.0))


_BAD = (
    ("code", 1),
    ("code", 75),
    ("code", 93),
    ("signal", 11),
    ("signal", 9),
    ("hang", 0),
    ("no-start", 0),
    ("code", 137),
)
_BAD_WEIGHTS = (8, 3, 1, 2, 2, 2, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """A task as a launcher would plan it."""

    name: str
    after: tuple[str, ...]
    num_replicas: int
    budgets: Budgets
    ready_timeout_s: float
    grace_s: float
    per_job_s: float | None
    time_s: float | None
    is_scheduled_whole: bool
    program: Program


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """What goes wrong, all of it before `CALM_AT_S`.

    Attributes:
        appends: fate of the n-th append.
        events: (time, what, number), what as named in `faults`.
        lost_replies: submissions (counted from 0) whose reply is lost.
    """

    appends: dict[int, Fate]
    events: tuple[tuple[float, str, int], ...]
    lost_replies: frozenset[int]
    is_refusing: bool
    queue_s: float

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong at all."""
        return not (self.appends or self.events or self.lost_replies or self.is_refusing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One whole history's beginning.

    Attributes:
        is_one_machine: all replicas are virtual nodes of one machine, where one can see which processes live.
        wishes: (time, verb) of people: stop, checkpoint-stop, retry, resume.
        site: the Slurm site it happens at; None: each job is one process tree.
    """

    tasks: tuple[TaskPlan, ...]
    is_one_machine: bool
    faults: FaultPlan
    wishes: tuple[tuple[float, str], ...]
    site: SitePlan | None = None

    @property
    def num_nodes(self) -> int:
        """Machines needed: one, or rank r of every task lives on node r; a site has room for all tasks and more."""
        if self.site is not None:
            return sum(task.num_replicas for task in self.tasks) + self.site.num_spare
        return 1 if self.is_one_machine else max(task.num_replicas for task in self.tasks)


SHARE_OF_SITES = 0.33
"""Of all seeds; a history at a site takes three times as long to live through."""


def is_at_site(seed: int) -> bool:
    """Whether the scenario of a seed is at a site."""
    return Random(f"place/{seed}").random() < SHARE_OF_SITES


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    if is_at_site(seed):
        return _draw_at_site(Random(f"site/{seed}"))
    random = Random(f"scenario/{seed}")
    num_tasks = random.choices((1, 2, 3), (6, 3, 1))[0]
    tasks: list[TaskPlan] = []
    for number in range(num_tasks):
        names = [task.name for task in tasks]
        after = tuple(name for name in names if random.random() < 0.6)
        tasks.append(_task(random, f"t{number}", after))
    is_calm = random.random() < 0.12
    is_one_machine = random.random() < 0.35
    return Scenario(
        tasks=tuple(tasks),
        is_one_machine=is_one_machine,
        faults=_no_faults() if is_calm else _faults(random),
        wishes=_wishes(random),
    )


def _draw_at_site(random: Random) -> Scenario:
    num_tasks = random.choices((1, 2), (6, 4))[0]
    tasks: list[TaskPlan] = []
    for number in range(num_tasks):
        after = tuple(task.name for task in tasks if random.random() < 0.8)
        tasks.append(_task_at_site(random, f"t{number}", after))
    is_calm = random.random() < 0.1
    faults = _no_faults() if is_calm else _faults_at_site(random)
    wishes = _wishes(random) if random.random() < 0.6 else ()
    return Scenario(tasks=tuple(tasks), is_one_machine=False, faults=faults, wishes=wishes, site=draw_site(random))


def _task_at_site(random: Random, name: str, after: tuple[str, ...]) -> TaskPlan:
    task = _task(random, name, after)
    program = replace(
        task.program,
        num_steps=random.randrange(6, 90),
        step_s=random.choice((1.0, 2.0, 4.0)),
        has_helper=False,
        failure_rate=random.choice((0.0, 0.0, 0.1, 0.4, 1.0)),
    )
    return replace(
        task,
        program=program,
        num_replicas=random.choices((1, 2, 3), (3, 4, 1))[0],
        budgets=Budgets(random.choice((50, 50, 50, 3)), random.choice((0, 1, 2))),
        ready_timeout_s=60.0,
        grace_s=random.choice((5.0, 10.0)),
        per_job_s=80.0 if after else random.choice((100.0, 150.0, 240.0)),
        time_s=random.uniform(50.0, 400.0) if random.random() < 0.1 else None,
    )


def _faults_at_site(random: Random) -> FaultPlan:
    num_crashes = random.choices((0, 1, 2), (5, 4, 1))[0]
    crashes = (*_CRASHES, Fate.STALL, Fate.STALL)
    return FaultPlan(
        appends={random.randrange(45): random.choice(crashes) for _ in range(num_crashes)},
        events=draw_site_events(random),
        lost_replies=frozenset(number for number in range(6) if random.random() < 0.1),
        is_refusing=random.random() < 0.01,
        queue_s=0.0,
    )


def _task(random: Random, name: str, after: tuple[str, ...]) -> TaskPlan:
    seed = random.getrandbits(32)
    program = Program(
        seed=seed,
        num_steps=random.randrange(2, 9),
        step_s=random.choice((0.5, 2.0, 5.0)),
        checkpoint_every=random.choice((0, 1, 1, 2, 3)),
        is_reporting=random.random() < 0.7,
        is_coupled=random.random() < 0.5,
        is_cooperating=random.random() < 0.3,
        is_cascading=random.random() < 0.3,
        has_helper=Random(f"helper/{seed}").random() < 0.4,  # of its own, so that the other draws stay what they are
        failure_rate=random.choice((0.0, 0.2, 0.5, 0.8, 1.0)),
    )
    return TaskPlan(
        name=name,
        after=after,
        num_replicas=random.choices((1, 2, 3), (8, 7, 5))[0],
        budgets=Budgets(random.choice((50, 50, 2, 6)), random.choice((0, 0, 1, 2, 4))),
        ready_timeout_s=random.choice((25.0, 60.0)),
        grace_s=random.choice((1.0, 4.0)),
        per_job_s=random.choice((20.0, 60.0)) if random.random() < 0.1 else None,
        time_s=random.uniform(5.0, 200.0) if random.random() < 0.1 else None,
        is_scheduled_whole=random.random() < 0.3,
        program=program,
    )


def _no_faults() -> FaultPlan:
    return FaultPlan(appends={}, events=(), lost_replies=frozenset(), is_refusing=False, queue_s=0.0)


_EVENTS = (
    "kill-supervisor",
    "kill-guard",
    "kill-both",
    "kill-node",
    "kill-process",
    "isolate",
    "unplug",
    "lossy",
    "clock",
    "notice",
    "hide",
    "resurrect",
    "kill-client",
)
_EVENT_WEIGHTS = (7, 2, 5, 3, 2, 6, 2, 8, 4, 1, 3, 5, 3)
_CRASHES = (Fate.CRASH_BEFORE, Fate.TORN, Fate.CRASH_AFTER, Fate.SLOW)


def _faults(random: Random) -> FaultPlan:
    num_crashes = random.choices((0, 1, 2, 4), (3, 4, 2, 1))[0]
    num_events = random.choices((0, 1, 2, 4, 7), (2, 4, 3, 2, 1))[0]
    latest = random.choice((30.0, 60.0, CALM_AT_S - 30.0))
    events = (
        (random.uniform(0.0, latest), random.choices(_EVENTS, _EVENT_WEIGHTS)[0], random.getrandbits(16))
        for _ in range(num_events)
    )
    return FaultPlan(
        appends={random.randrange(45): random.choice(_CRASHES) for _ in range(num_crashes)},
        events=tuple(sorted(events)),
        lost_replies=frozenset(number for number in range(4) if random.random() < 0.1),
        is_refusing=random.random() < 0.02,
        queue_s=random.choice((0.0, 0.0, 5.0, 30.0)),
    )


def _wishes(random: Random) -> tuple[tuple[float, str], ...]:
    found: list[tuple[float, str]] = []
    if random.random() < 0.2:
        found.append((random.uniform(0.5, 60.0), random.choice(("stop", "stop", "checkpoint-stop"))))
    again = [verb for verb in ("retry", "resume", "retry") if random.random() < 0.2]
    found += [(random.uniform(10.0, 200.0), verb) for verb in again]
    return tuple(sorted(found))
