"""The ports of the shipped submission, reconciler and controls in virtual time, and commands that block in them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tests.sim.disk import Crash, Reader, VirtualWriter
from tests.sim.node import NodeClock
from tests.sim.world import World
from windlass.backends import Rendered
from windlass.record.frames import Record
from windlass.record.state import RunFacts

if TYPE_CHECKING:
    from tests.sim.backend import VirtualBackend
    from tests.sim.client import Clients
    from tests.sim.site.backend import SiteBackend

__all__ = ["Command", "VirtualPorts"]

_LOCK_PAUSE_S = 0.1


class _Thread:
    """A thread that runs one command after another, and only while the world waits for it."""

    idle: ClassVar[list[_Thread]] = []

    def __init__(self) -> None:
        self._go, self._back = threading.Lock(), threading.Lock()
        self._go.acquire()
        self._back.acquire()
        self._error: BaseException | None = None
        self.body: Callable[[], None] = lambda: None
        threading.Thread(target=self._live, daemon=True).start()

    def resume(self) -> None:
        """Run the body up to its next pause or its end; raises what the body raises."""
        self._go.release()
        self._back.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def pause(self) -> None:
        """Called by the body: wait for the next `resume`."""
        self._back.release()
        self._go.acquire()

    def _live(self) -> None:
        while True:
            self._go.acquire()
            try:
                self.body()
            except BaseException as error:  # noqa: BLE001  a violation among them: the world raises it
                self._error = error
            self.idle.append(self)
            self._back.release()


class Command:
    """One command of a person, or of cron, on its way.

    Attributes:
        running: the one that runs now.
    """

    running: ClassVar[Command]

    def __init__(self, name: str, world: World) -> None:
        self.name, self._world = name, world
        self._is_killed = False
        self._thread = _Thread.idle.pop() if _Thread.idle else _Thread()

    def start(self, body: Callable[[], None]) -> None:
        """Run up to its first pause."""
        self._thread.body = body
        self._resume()

    def block(self, delay: float) -> None:
        """Let time pass. Raises Crash if the command is killed meanwhile."""
        if not self._world.skip(delay):
            self._world.at(delay, self._wake)
            self._wait()

    def block_while(self, is_blocked: Callable[[], bool]) -> None:
        """Look again and again until something is so no more. Raises as `block` does."""
        if is_blocked():
            self._world.at(_LOCK_PAUSE_S, self._wake_unless, is_blocked)
            self._wait()

    def kill(self) -> None:
        """SIGKILL: what it holds is released, and nothing else is done."""
        self._is_killed = True
        self._resume()

    def _wait(self) -> None:
        self._thread.pause()
        if self._is_killed:
            raise Crash

    def _wake(self) -> None:
        if not self._is_killed:
            self._resume()

    def _wake_unless(self, is_blocked: Callable[[], bool]) -> None:
        if not self._is_killed and is_blocked():
            self._world.at(_LOCK_PAUSE_S, self._wake_unless, is_blocked)
        else:
            self._wake()

    def _resume(self) -> None:
        Command.running = self
        self._thread.resume()


class VirtualFiles:
    """The run's files as one command sees them; see `ports.RunFiles`."""

    id = "sim-1"

    def __init__(self, clients: Clients, command: Command, reader: Reader, facts: RunFacts) -> None:
        self._clients, self._command, self._reader, self._facts = clients, command, reader, facts
        self._writer: VirtualWriter | None = None

    def facts(self) -> RunFacts:
        """As old as the last call of this command: the same object, brought up to date."""
        for record in self._reader.poll():
            self._facts.apply(record)
        return self._facts

    def job_folder(self, task: str, number: int) -> Path:
        """Below the run's."""
        return Path(f"jobs/{task}-{number}")

    def has_plan(self) -> bool:
        """From the first moment of the launch."""
        return self._clients.has_folder

    def is_launching(self) -> bool:
        """While the command lives that launches it."""
        return self._clients.launching is not None

    def is_staged(self) -> bool:
        """Some time later."""
        return self._clients.is_staged

    def is_own(self) -> bool:
        """There is one user."""
        return True

    def has_secrets(self) -> bool:
        """There are none."""
        return False

    def missing_records(self, facts: RunFacts) -> list[str]:
        """Nobody removes files."""
        return []

    @contextmanager
    def open_journal(self) -> Iterator[VirtualFiles]:
        """A file of its own for each command."""
        yield self

    def append(self, kind: str, *, is_durable: bool = True, **data: Any) -> Record:
        """Record a fact, some time after the step before; see `ports.ClientJournal`."""
        self._clients.pause()
        if self._writer is None:
            cluster = self._clients.cluster
            self._writer = VirtualWriter(cluster.disk, self._command.name, cluster.nodes[0].clock, self._command)
        return self._writer.append(kind, **data)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Released with the command."""
        clients = self._clients
        self._command.block_while(lambda: clients.locked_by is not None)
        clients.locked_by = self._command
        try:
            yield
        finally:
            clients.locked_by = None

    def remove_launch_lock(self) -> None:
        """Nothing is left of it."""

    def close(self) -> None:
        """Close the journal, as the end of the command does."""
        if self._writer is not None:
            self._writer.close()


class VirtualPorts:
    """All ports of one command; see `ports.ClientPorts`."""

    site = None

    def __init__(self, clients: Clients, command: Command, reader: Reader, facts: RunFacts) -> None:
        self._clients, self._world = clients, clients.world
        self.files = VirtualFiles(clients, command, reader, facts)
        self.clock = NodeClock(clients.world, 0.0)
        self.plan = clients.plan

    def backend(self, *, patience_s: float | None = None) -> VirtualBackend | SiteBackend:
        """The one there is."""
        return self._clients.backend

    def rendered_job(self, task: str, number: int) -> tuple[VirtualBackend | SiteBackend, Rendered]:
        """Its folder and its token are all that counts."""
        token = self.files.facts().task(task).jobs[number].token
        folder = self.files.job_folder(task, number)
        return self._clients.backend, Rendered(folder=folder, files={}, argv=(), token=token)

    def new_token(self) -> str:
        """Of the seed."""
        return f"{self._world.random.getrandbits(64):016x}"

    def deliver_secrets(self) -> None:
        """There are none."""

    def remove_secrets(self) -> None:
        """There are none."""
