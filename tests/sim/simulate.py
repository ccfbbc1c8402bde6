"""One seed, one history: put the parts together, let time pass, judge the end."""

from __future__ import annotations

import contextlib
import traceback
from contextlib import AbstractContextManager, nullcontext
from random import Random

from tests.sim.backend import VirtualBackend
from tests.sim.client import Clients
from tests.sim.cluster import Cluster
from tests.sim.disk import Disk
from tests.sim.faults import Faults, fate_of
from tests.sim.invariants import Monitor
from tests.sim.mutants import mutated
from tests.sim.network import Network
from tests.sim.node import Node
from tests.sim.process import ProcessTable
from tests.sim.scenario import CALM_AT_S, Scenario, draw
from tests.sim.site.backend import SiteBackend
from tests.sim.site.chain_watch import ChainWatch
from tests.sim.site.faults import SiteFaults
from tests.sim.world import Violation, World
from windlass.core.dataclass import dataclass
from windlass.launcher.reconcile import policy
from windlass.record import frames
from windlass.record.state import RunFacts, fold

__all__ = ["Result", "simulate"]

_LIMIT_S = 6 * 3600.0
_MAX_EVENTS = 150_000
_QUIET_S = 45.0
_KEEP_EVERY_S = 15.0
_NUM_SHUFFLES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a seed.

    Attributes:
        failure: which invariant did not hold; empty when all did.
        states: final state of each task.
        virtual_s: how long the history was.
        crashes: (kind of record, fate) of the appends that did not go well.
    """

    seed: int
    mutant: str
    failure: str
    states: tuple[str, ...]
    virtual_s: float
    num_events: int
    num_records: int
    crashes: frozenset[tuple[str, str]]
    trace: tuple[str, ...]

    @property
    def replay_command(self) -> str:
        """What to type to see it again."""
        mutant = f" --mutant {self.mutant}" if self.mutant else ""
        return f"python -m tests.sim --seed {self.seed}{mutant} --trace"


def simulate(seed: int, *, mutant: str = "", is_traced: bool = False) -> Result:
    """Live through the history of a seed with the shipped policies, or with one of them broken on purpose."""
    changed: AbstractContextManager[None] = mutated(mutant) if mutant else nullcontext()
    with changed:
        history = _History(seed, is_traced=is_traced)
        failure = history.live()
    return Result(
        seed=seed,
        mutant=mutant,
        failure=failure,
        states=tuple(str(task.state) for task in history.monitor.facts.tasks.values()),
        virtual_s=history.world.now,
        num_events=history.world.num_events,
        num_records=sum(len(records) for records in history.monitor.records.values()),
        crashes=frozenset(history.cluster.disk.crashes),
        trace=tuple(history.world.trace),
    )


class _History:
    """Everything there is under one seed."""

    def __init__(self, seed: int, *, is_traced: bool) -> None:
        self.world = World(seed, is_traced=is_traced)
        self.scenario: Scenario = draw(seed)
        self.monitor = Monitor(self.world, self.scenario)
        disk = Disk(
            self.world, fate_of(self.scenario.faults, self.monitor), self.monitor.on_record, self.monitor.on_fault
        )
        self.cluster = Cluster(
            world=self.world,
            nodes=tuple(Node(self.world, number) for number in range(self.scenario.num_nodes)),
            disk=disk,
            network=Network(self.world),
            processes=ProcessTable(self.world, disk, self.monitor),
            monitor=self.monitor,
            is_site=self.scenario.site is not None,
        )
        self.backend: VirtualBackend | SiteBackend = VirtualBackend(
            self.cluster, self.scenario.tasks, self.scenario.faults
        )
        self.chains: ChainWatch | None = None
        if self.scenario.site is not None:
            self.backend = SiteBackend(self.cluster, self.scenario.tasks, self.scenario.site, self.scenario.faults)
            self.chains = self.monitor.chains = ChainWatch(self.backend.slurm, self.monitor)
        self.clients = Clients(self.cluster, self.backend, self.scenario)
        self._quiet_since = -1.0
        self._closed_at_version = (-1, False)
        self._last_fault_at = max((time for time, _, _ in self.scenario.faults.events), default=0.0)
        self._num_wishes = len(self.scenario.wishes)

    def live(self) -> str:
        """Let it happen; returns the violation, or an empty string."""
        try:
            self._begin()
            self.world.run(self._is_over, until=_LIMIT_S, max_events=_MAX_EVENTS)
            self._judge()
        except Violation as violation:
            self.world.log("VIOLATION: %s", violation)
            if self.monitor.known_gap:  # a record that hung while a later start used the same number: nothing follows
                self.world.log("not judged: %s", self.monitor.known_gap)
                return ""
            return f"{violation} (at {self.world.now:.1f} s)"
        except Exception as error:  # noqa: BLE001  a core that raises is a finding like any other
            self.world.log("%s", traceback.format_exc())
            return f"a policy raised {type(error).__name__}: {error} (at {self.world.now:.1f} s)"
        finally:
            with contextlib.suppress(Violation):  # the history is over
                self.clients.kill()
        return ""

    def _begin(self) -> None:
        for task in self.scenario.tasks:
            self.world.log("plan: %s", task)
        self.world.log("faults: %s", self.scenario.faults)
        self.world.log("wishes: %s", self.scenario.wishes)
        self.world.log("site: %s", self.scenario.site)
        site = self.scenario.site
        faults = Faults if site is None else SiteFaults
        faults(self.cluster, self.backend, self.clients).schedule(self.scenario.faults)
        if site is not None and site.clients_leave_at >= 0:
            self.world.at(site.clients_leave_at, self._leave)
        self.clients.launch()
        for time, verb in self.scenario.wishes:
            self.world.at(time, self._wish, verb)
        self.world.at(self.world.uniform(2.0, 30.0), self._look_after)

    def _wish(self, verb: str) -> None:
        self._num_wishes -= 1
        self.world.log("a person types: %s", verb)
        self.clients.ask(verb)

    def _leave(self) -> None:
        """Nobody looks after the run any more; somebody comes back when only a person can help."""
        self.world.log("all clients are gone")
        self.clients.leave()
        self._look_in()

    def _look_in(self) -> None:
        assert self.chains is not None
        facts = self.monitor.facts
        if not facts.tasks or facts.state.is_terminal or self.chains.is_stuck():
            self.world.log("somebody looks after the run again")
            self.clients.have_left = False
        else:
            self.world.at(30.0, self._look_in)

    def _look_after(self) -> None:
        """Somebody types `windlass ps` now and then, later cron does."""
        self.clients.keep()
        is_calm = self.world.now > CALM_AT_S
        self.world.at(_KEEP_EVERY_S if is_calm else self.world.uniform(1.0, 40.0), self._look_after)

    def _is_over(self) -> bool:
        is_quiet = not self._num_wishes and self.clients.are_idle and self._is_closed() and self.backend.is_quiet
        if not is_quiet or self.clients.has_left():
            self._quiet_since = -1.0
            return False
        if self._quiet_since < 0:
            self._quiet_since = self.world.now
        return self.world.now > max(self._quiet_since, self.monitor.last_fault_at, self._last_fault_at) + _QUIET_S

    def _is_closed(self) -> bool:
        """Whether the run is over and leaves nothing to do; found out once for each state of the journals."""
        version = self.cluster.disk.version
        if self._closed_at_version[0] != version:
            facts = self.monitor.facts
            is_closed = bool(facts.tasks) and facts.state.is_terminal
            is_closed = is_closed and not any(map(policy.has_loose_ends, facts.tasks.values()))
            self._closed_at_version = (version, is_closed)
        return self._closed_at_version[1]

    # --- the end --------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        living = self.cluster.processes.living()
        if living:
            raise Violation(f"{len(living)} processes of the user outlive the run")
        staying = [guard.job.folder for guard in self.cluster.guards.values() if guard.holds_lock]
        if staying:
            raise Violation(f"supervisors of {staying} do not leave")
        for name, task in self.monitor.facts.tasks.items():
            open_ends = [
                attempt.number for attempt in task.attempts.values() if attempt.has_started and not attempt.end
            ]
            if open_ends:
                raise Violation(f"attempts {open_ends} of {name} have no cause")
        if self.chains is not None:
            self.chains.judge()
        self._judge_disk()
        self._judge_fold()

    def _judge_disk(self) -> None:
        """Every record whose append returned is there, and nothing is damaged but the very end of a file."""
        found: set[tuple[str, int]] = set()
        for name, content in self.cluster.disk.files.items():
            records, _, num_damaged = frames.read_frames(bytes(content))
            found.update((record.writer, record.seq) for record in records)
            if num_damaged:
                raise Violation(f"{name} holds {num_damaged} damaged records")
        for record in self.cluster.disk.acknowledged:
            if (record.writer, record.seq) not in found:
                raise Violation(f"record {record.seq} of {record.writer} ({record.kind}) is lost")

    def _judge_fold(self) -> None:
        """Any order that keeps each writer's own gives the same facts."""
        random = Random(f"shuffle/{self.world.seed}")
        for _ in range(_NUM_SHUFFLES):
            left = {writer: iter(records) for writer, records in self.monitor.records.items()}
            order = [writer for writer, records in self.monitor.records.items() for _ in records]
            random.shuffle(order)
            facts = fold(next(left[writer]) for writer in order)
            if facts != self.monitor.facts:
                raise Violation(
                    f"another order of records folds to something else: {_difference(facts, self.monitor.facts)}"
                )


def _difference(one: RunFacts, other: RunFacts) -> str:
    for name, task in one.tasks.items():
        for key, value in vars(task).items():
            theirs = vars(other.tasks[name])[key] if name in other.tasks else None
            if value != theirs:
                return f"{name}.{key}: {value} and {theirs}"
    return "the run's own facts"
