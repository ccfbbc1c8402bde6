"""Virtual processes of the user: behind a gate, then step by step, until they end by themselves or are ended."""

from __future__ import annotations

from collections.abc import Callable

from tests.sim.disk import Disk, VirtualWriter
from tests.sim.invariants import Monitor
from tests.sim.node import Node
from tests.sim.scenario import Program, TaskPlan
from tests.sim.world import World
from windlass.record import events

__all__ = ["HelperProcess", "ProcessTable", "VirtualProcess"]


class VirtualProcess:
    """The user's code of one replica in one attempt.

    Attributes:
        code: how it ended; None while it lives.
        on_exit: the living parent that gets SIGCHLD.
    """

    def __init__(
        self, table: ProcessTable, *, task: TaskPlan, token: str, job: int, attempt: int, rank: int, node: Node
    ) -> None:
        self._table, self._world = table, table.world
        self.task, self.token, self.job, self.attempt, self.rank, self.node = task, token, job, attempt, rank, node
        self.identity = f"{table.next_pid()}:1:{node.name}"
        self.is_gated = True
        self.code: int | None = None
        self.on_exit: Callable[[], None] | None = None
        self._program: Program = task.program
        self._behaviour = task.program.behaviour(task.name, attempt, rank, task.num_replicas)
        self._step = self._last = self._end_at = 0
        self._writer: VirtualWriter | None = None
        self._has_reported = self._asked_stop = False
        self.is_stopped = False
        self.was_disturbed = False
        self.incarnation = ""
        self.helper: HelperProcess | None = None
        self.started_at = self._world.now
        self._held: list[Callable[[], None]] = []

    @property
    def is_alive(self) -> bool:
        """Whether it exists."""
        return self.code is None

    @property
    def runs(self) -> bool:
        """Whether it executes the user's code now: not behind its gate, and not stopped."""
        return self.is_alive and not self.is_gated and not self.is_stopped

    @property
    def cannot_start(self) -> bool:
        """Whether the user's command does not exist on this node."""
        return self._behaviour.ending.kind == "no-start"

    def open_gate(self) -> str:
        """Let it execute; returns why it cannot, or an empty string."""
        self.is_gated = False
        if self.cannot_start:
            self._exit(127)
            return "no such file: ./train.sh"
        self._unless_stopped(self._begin)
        return ""

    def _begin(self) -> None:
        self._table.monitor.on_user_code(self)
        if self._program.has_helper:
            self.helper = HelperProcess(self)
            self._table.add(self.helper)
        self._step = self._table.steps.get(self.task.name, 0)
        self._last = self._program.num_steps
        left = self._last - self._step
        ending = self._behaviour.ending
        self._end_at = self._step + (left if ending.kind == "done" else int(ending.progress * left))
        if self._program.is_cooperating:
            self._report(events.COOPERATES)
        self._world.at(self._world.uniform(0.01, 0.2), self._next)

    def stop(self) -> None:
        """SIGSTOP."""
        if not self.is_stopped:
            self._world.log("process %s is stopped", self.identity)
            self.is_stopped = True

    def let_go(self) -> None:
        """SIGCONT; what came meanwhile happens now."""
        if not self.is_stopped or not self.is_alive:
            return
        self._world.log("process %s goes on", self.identity)
        self.is_stopped = False
        if not self.is_gated:
            self._table.monitor.on_going_on(self)
        held, self._held = self._held, []
        for action in held:
            action()

    def _unless_stopped(self, action: Callable[[], None]) -> None:
        if self.is_stopped:
            self._held.append(action)
        else:
            action()

    def ask(self) -> None:
        """The control file says stop."""
        self._asked_stop = True

    def terminate(self) -> None:
        """SIGTERM."""
        self.was_disturbed = True
        self._unless_stopped(self._on_term)

    def _on_term(self) -> None:
        if not self.is_alive or self.is_gated:
            self._exit(-15)
            return
        how = self._behaviour.on_term
        self._world.log("process %s gets SIGTERM: %s", self.identity, how)
        if how == "exit":
            self._world.at(0.01, self._exit_running, -15)
        elif how == "save":
            self._world.at(self._behaviour.term_s, self._save_and_exit, 75)
        elif how == "finish":
            self._world.at(self._behaviour.term_s, self._exit_running, 0)

    def kill(self) -> None:
        """SIGKILL."""
        if self.is_alive:
            self.was_disturbed = True
        self._exit(-9)

    def kill_tree(self) -> None:
        """SIGKILL to it and to what it started."""
        for process in (self, self.helper):
            if process is not None:
                process.kill()

    def abort(self) -> None:
        """SIGABRT, from a library of its own that lost a peer."""
        if not self.is_gated:
            self._exit_running(-6)

    def _exit_running(self, code: int) -> None:
        """Leave, unless stopped: then when it may go on."""
        self._unless_stopped(lambda: self._exit(code))

    def _next(self) -> None:
        if not self.is_alive:
            return
        if self.is_stopped:
            self._held.append(self._next)
            return
        if self.node.is_stalled:
            self._world.at(self.node.stalled_until - self._world.now, self._next)
            return
        if self._asked_stop and self._program.is_cooperating:
            self._save_and_exit(75)
            return
        if self._step >= self._end_at:
            self._finish()
            return
        if self._program.is_coupled and self._table.has_gap(self):
            return
        self._step += 1
        if self._program.is_reporting:
            self._has_reported = True
            self._report(events.PROGRESS, phase="step", step=self._step)
        every = self._program.checkpoint_every
        if every and self._step % every == 0 and self.rank == 0:
            self._checkpoint()
        self._world.at(self._program.step_s, self._next)

    def _finish(self) -> None:
        ending = self._behaviour.ending
        if (ending.kind == "hang" and self._has_reported) or (
            ending.kind == "done" and self._program.is_coupled and self._table.has_gap(self)
        ):
            return
        self._exit({"done": 0, "code": ending.number, "signal": -ending.number, "hang": 1}[ending.kind])

    def _save_and_exit(self, code: int) -> None:
        if self.is_stopped:
            self._held.append(lambda: self._save_and_exit(code))
            return
        if self.node.is_stalled and self.is_alive:
            self._world.at(self.node.stalled_until - self._world.now, self._save_and_exit, code)
            return
        if self.is_alive and self.rank == 0 and self._program.checkpoint_every:
            self._checkpoint()
        self._exit(code)

    def _checkpoint(self) -> None:
        if self._step > self._table.steps.get(self.task.name, 0):
            self._table.steps[self.task.name] = self._step
        self._report(events.CHECKPOINT, path=f"step_{self._step}", step=self._step, phase_s={})

    def _report(self, kind: str, **facts: object) -> None:
        if self._writer is None:
            name = f"{self.task.name}.{self.rank}.report-{self.identity.partition(':')[0]}-1"
            self._writer = VirtualWriter(self._table.disk, name, self.node.clock, self, is_faulty=False)
        self._writer.append(kind, task=self.task.name, attempt=self.attempt, rank=self.rank, **facts)

    def _exit(self, code: int) -> None:
        if not self.is_alive:
            return
        self.code = code
        self._world.log(
            "process %s of %s attempt %d rank %d ends: %d", self.identity, self.task.name, self.attempt, self.rank, code
        )
        self._table.monitor.on_exit(self)
        if code and code != -9 and self._program.is_cascading:
            self._table.cascade(self)
        if self.on_exit is not None:
            self._world.at(0.001, self.on_exit)


class HelperProcess(VirtualProcess):
    """Something that the user's code started and does not wait for; only SIGKILL ends it."""

    def __init__(self, parent: VirtualProcess) -> None:
        super().__init__(
            parent._table,
            task=parent.task,
            token=parent.token,
            job=parent.job,
            attempt=parent.attempt,
            rank=parent.rank,
            node=parent.node,
        )
        self.is_gated = False
        self.incarnation = parent.incarnation

    def terminate(self) -> None:
        """SIGTERM is ignored."""

    def abort(self) -> None:
        """It has lost no peer."""


class ProcessTable:
    """All user processes of all nodes.

    Attributes:
        steps: newest committed step by task; what a later attempt continues from.
    """

    def __init__(self, world: World, disk: Disk, monitor: Monitor) -> None:
        self.world, self.disk, self.monitor = world, disk, monitor
        self.steps: dict[str, int] = {}
        self._all: dict[str, VirtualProcess] = {}
        self._num_pids = 100

    def next_pid(self) -> int:
        """A pid that nobody has had."""
        self._num_pids += 1
        return self._num_pids

    def add(self, process: VirtualProcess) -> None:
        """Fork."""
        self._all[process.identity] = process

    def find(self, identity: str) -> VirtualProcess | None:
        """The process of that identity, alive or not."""
        return self._all.get(identity)

    def living(self) -> list[VirtualProcess]:
        """Everything that lives."""
        return [process for process in self._all.values() if process.is_alive]

    def of(self, token: str, rank: int, node: Node | None = None) -> list[VirtualProcess]:
        """Living processes that carry a job's token for a rank, on one node or any."""
        found = [process for process in self.living() if process.token == token and process.rank == rank]
        return [process for process in found if node is None or process.node is node]

    def cascade(self, process: VirtualProcess) -> None:
        """Let the peers of a process that failed abort within a quarter of a second."""
        for peer in self.living():
            if peer.task is process.task and peer.attempt == process.attempt:
                self.world.at(self.world.uniform(0.02, 0.25), peer.abort)

    def has_gap(self, process: VirtualProcess) -> bool:
        """Whether another rank of the attempt ended badly or was never there, so that a collective would block."""
        gang = [p for p in self._all.values() if p.task is process.task and p.attempt == process.attempt]
        peers = {peer.rank: peer for peer in gang if not isinstance(peer, HelperProcess)}
        return any(peer.code not in (None, 0) for peer in peers.values())
