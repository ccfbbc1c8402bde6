"""Event loop of a supervisor, which waits for signals, messages, output and timers."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.core.clock import Clock, SystemClock
from windlass.core.files import write_atomic
from windlass.core.process import identify
from windlass.supervise.fencing.guard import FORWARDED, GuardContext
from windlass.supervise.gang.incarnation import LOCAL, Incarnation
from windlass.supervise.job import JobDocument
from windlass.supervise.linux import become_subreaper
from windlass.supervise.replica.machine import ports_of
from windlass.supervise.replica.supervisor import Supervisor

if TYPE_CHECKING:
    from windlass.supervise.slurm.step_daemon import StepDaemons

__all__ = ["SignalQueue", "keep_crash", "run_supervisor", "supervise"]


class SignalQueue:
    """Queue of this process's signals; `socket` becomes readable when one arrives."""

    def __init__(self) -> None:
        self._waker, self.socket = socket.socketpair()
        self._waker.setblocking(False)
        self.socket.setblocking(False)

    def listen(self) -> None:
        """Start to receive SIGCHLD and the signals that the guard forwards, which were blocked until now."""
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *FORWARDED):
            signal.signal(number, lambda *_: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)

    def take(self) -> list[int]:
        """Return the signals received since the last call, each once; SIGCHLD last.

        A scheduler may signal the code together with its supervisor; the notice then explains the code's end.
        """
        return sorted(set(self.socket.recv(4096)), key=lambda number: (number == signal.SIGCHLD, number))


def run_supervisor(supervisor: Supervisor, selector: selectors.BaseSelector, clock: Clock) -> int:
    """Run a supervisor until the task no longer needs it; return its exit code. Blocking."""
    become_subreaper()
    signals = SignalQueue()
    signals.listen()

    def on_signals() -> None:
        for number in signals.take():
            supervisor.on_signal(number)

    selector.register(signals.socket, selectors.EVENT_READ, on_signals)
    supervisor.begin()
    ticked_at = float("-inf")
    while supervisor.exit_code is None:
        wait_s = ticked_at + supervisor.timeout_s - clock.monotonic()
        if wait_s <= 0:  # only by the clock: ticks after each message would send replies, which cause more messages
            ticked_at = clock.monotonic()
            supervisor.tick()
            wait_s = 0.0  # messages are read even if every tick takes longer than the interval of ticks
        for key, _ in selector.select(wait_s):
            key.data()
    supervisor.close()
    return supervisor.exit_code


def supervise(
    job_folder: Path,
    rank: int,
    context: GuardContext,
    incarnation: Incarnation = LOCAL,
    daemons: StepDaemons | None = None,
) -> int:
    """Create and run a supervisor; a crash is saved beside job.json, and the guard restarts it (exit code 70)."""
    try:
        clock, selector = SystemClock(), selectors.DefaultSelector()
        job = JobDocument.read(job_folder / "job.json")
        ports = ports_of(job, job_folder, rank, context, incarnation=incarnation, clock=clock, selector=selector)
        supervisor = Supervisor(job, job_folder, rank, ports, incarnation=incarnation, daemons=daemons)
        return run_supervisor(supervisor, selector, clock)
    except BaseException:
        keep_crash(incarnation.folder(job_folder) / f"supervisor-{rank}.crash")
        raise


_MAX_BYTES = 64 << 10


def keep_crash(path: Path) -> None:
    """Append the current traceback to the file, keeping the newest; never raises."""
    import traceback  # lazy: only for our own bugs

    with contextlib.suppress(OSError):  # no other error may hide the crash
        earlier = path.read_bytes()[-_MAX_BYTES:] if path.exists() else b""
        text = f"--- {identify(os.getpid())}\n{traceback.format_exc()}"
        write_atomic(path, earlier + text.encode(errors="replace"), is_durable=False)
