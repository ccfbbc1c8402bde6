"""Virtual clients: launch, look after, stop, retry and resume a run, and die in the middle of it.

They run the shipped `submit`, `reconciler` and `control` over the ports of tests/sim/client_ports.py. Between two calls
of one client anything else may happen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tests.sim.backend import VirtualBackend
from tests.sim.client_ports import Command, VirtualPorts
from tests.sim.cluster import Cluster
from tests.sim.disk import Crash, Reader
from tests.sim.scenario import Scenario, TaskPlan
from tests.sim.site.backend import SiteBackend
from windlass.core.errors import PreconditionError, UnreachableError
from windlass.launcher import submit
from windlass.launcher.control import request_stop, start_again
from windlass.launcher.reconcile.reconciler import reconcile_through
from windlass.plan.plan import Plan
from windlass.plan.plan import TaskPlan as PlannedTask
from windlass.plan.site import Site
from windlass.record.state import RunFacts
from windlass.supervise.job import ChainConfig, TaskSettings, TaskShape

__all__ = ["Clients"]

Verb = Callable[[VirtualPorts], object]


class Clients:
    """Everybody who ever types `windlass`.

    Attributes:
        plan: plan of the run.
        have_left: nobody types anything.
        has_folder, is_staged: how far the launch came.
        launching, locked_by: who holds the lock of the launch, and the lock of commands that act.
    """

    def __init__(self, cluster: Cluster, backend: VirtualBackend | SiteBackend, scenario: Scenario) -> None:
        self.cluster, self.world, self.backend = cluster, cluster.world, backend
        self.plan = _plan(scenario)
        self.have_left = self.has_folder = self.is_staged = False
        self.launching: Command | None = None
        self.locked_by: Command | None = None
        self._living: list[Command] = []
        self._views: list[tuple[Reader, RunFacts]] = []
        self._num = 0
        backend.pause = self.pause

    @property
    def are_idle(self) -> bool:
        """Whether no command is on its way."""
        return not self._living

    def launch(self) -> None:
        """`windlass launch`."""
        self._begin(self._launch)

    def keep(self) -> None:
        """What every command that acts on a run does."""
        if self.has_folder:
            self._begin(reconcile_through)

    def ask(self, verb: str) -> None:
        """stop, checkpoint-stop, retry or resume."""
        if verb in ("stop", "checkpoint-stop"):
            is_checkpoint_wanted = verb != "stop"
            self._begin(
                lambda ports: request_stop(ports, reason="stopped by hand", is_checkpoint_wanted=is_checkpoint_wanted)
            )
        else:
            self._begin(lambda ports: start_again(ports, resets_budgets=verb == "retry"))

    def leave(self) -> None:
        """Everybody is killed, and nobody types anything until they are back."""
        self.kill()
        self.have_left = True

    def kill(self) -> None:
        """SIGKILL to every command that is on its way."""
        for command in list(self._living):
            command.kill()

    def has_left(self) -> bool:
        """Whether nobody has seen yet that nothing is left of some job."""
        return any(task.jobs_left for task in self.cluster.monitor.facts.tasks.values())

    # --- running commands -----------------------------------------------------------------------------------------

    def _begin(self, verb: Verb) -> None:
        if self.have_left:
            return
        self._num += 1
        command = Command(f"client-{self._num}", self.world)
        self._living.append(command)
        command.start(lambda: self._run(command, verb))

    def _run(self, command: Command, verb: Verb) -> None:
        """On the command's own thread: from its first statement to its end, by an error or a kill too."""
        view = self._views.pop() if self._views else (Reader(self.cluster.disk), RunFacts())
        ports = VirtualPorts(self, command, *view)
        try:
            with contextlib.suppress(Crash, UnreachableError, PreconditionError):
                verb(ports)
        finally:
            self._living.remove(command)
            self._views.append(view)
            ports.files.close()

    def pause(self) -> None:
        """Let time pass for the command that runs now."""
        world = self.world
        short = world.chance(0.8)
        Command.running.block(world.uniform(0.001, 0.05) if short else world.uniform(0.1, 4.0))

    def _launch(self, ports: VirtualPorts) -> None:
        """`start.start_run`, whose staging is nothing but a pause."""
        self.has_folder, self.launching = True, Command.running
        try:
            self.pause()
            self.is_staged = True
            jobs = dict.fromkeys((task.name for task in self.plan.tasks), 1)
            with ports.files.open_journal() as journal:
                submit.announce(ports, journal)
                submit.intend(ports, jobs, journal, resets_budgets=True)
                refusal = submit.submit_all(ports, jobs, journal)
        finally:
            self.launching = None
        if refusal is not None:
            reconcile_through(ports)


def _plan(scenario: Scenario) -> Plan:
    site = Site(backend="slurm") if scenario.site is not None else Site()
    num_links = scenario.site.num_links if scenario.site is not None else 0
    return Plan(name="sim", site=site, tasks=tuple(_planned(task, num_links) for task in scenario.tasks))


def _planned(task: TaskPlan, num_links: int) -> PlannedTask:
    return PlannedTask(
        name=task.name,
        argv=("python", "train.py"),
        is_shell=False,
        shape=TaskShape(nodes=task.num_replicas),
        settings=TaskSettings(after=task.after, interrupted=task.budgets.interrupted, failed=task.budgets.failed),
        chain=ChainConfig(num_links=num_links),
    )
