"""The warden: the guard's child that stops or kills the user's processes of a replica that is cut off.

    guard --> supervisor (may hang in the shared file system)
          --> warden     (never touches it) --> beater (may hang in it)

It lives as long as its guard or a supervisor of it does, and is started again when it dies.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
import zlib
from pathlib import Path

from windlass.core.dataclass import dataclass
from windlass.core.process import send_signal
from windlass.supervise.fencing.fence import Action, Ruling, WardenCore
from windlass.supervise.fencing.heartbeat import Beater, unpack_beats
from windlass.supervise.fencing.process_scan import Wards
from windlass.supervise.fencing.shared_memory import Board, since_boot
from windlass.supervise.job import Fencing
from windlass.supervise.linux import die_with_parent, set_process_name
from windlass.supervise.replica.environment import TOKEN_NAME
from windlass.supervise.replica.process_tree import sweep

__all__ = ["Keeper", "Post", "Warden"]

_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTSTP)
"""A scheduler's notices go to every process of a job, and are not for the warden."""

_READ_BYTES = 9 * 100
_QUICK_S = 2.0
_MIN_GAP_S = 2.0
_POLL_TURNS = 2
_RESTART_PAUSE_S = 1.0


@dataclass(frozen=True)
class Post:
    """What a warden must know of its replica.

    Attributes:
        token: of the run on this machine, as in the environment of the user's processes.
        incarnation: name of this start of the job; empty where there is only one.
    """

    job_folder: Path
    rank: int
    token: str
    incarnation: str
    fencing: Fencing

    @property
    def guard_name(self) -> str:
        """What guards of this job call themselves, at most 15 characters."""
        return f"windlass-{zlib.crc32(self.token.encode()) & 0xFFFFFF:06x}"


class Keeper:
    """The guard's side: starts the warden, and starts it again. Leaves the guard single-threaded.

    The lifeline is a pipe whose write end only the guard and its supervisors hold: its end tells that all of them died.
    """

    def __init__(self, post: Post) -> None:
        self.board = Board.create()
        self._post = post
        self._lifeline, self._held_end = os.pipe()
        self._pid = 0
        self._started_at = float("-inf")

    def start(self) -> None:
        """Fork a warden; one that dies at once is not started again at once. Raises OSError when it cannot fork."""
        if time.monotonic() < self._started_at + _QUICK_S:
            time.sleep(_RESTART_PAUSE_S)
        self._started_at = time.monotonic()
        guard_pid = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                try:
                    _become_warden(self._post, self.board, guard_pid, self._lifeline)
                finally:
                    os._exit(1)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
        self.board.set_warden(self._pid)

    def restart_if(self, pid: int) -> bool:
        """Whether the process that died was the warden; then there is another one."""
        if pid != self._pid:
            return False
        while True:
            with contextlib.suppress(OSError):  # no process to be had just now: the ranks need a warden all the same
                self.start()
                return True

    def end(self) -> None:
        """The replica is over; its beater dies with the warden."""
        send_signal(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)


def _become_warden(post: Post, board: Board, guard_pid: int, lifeline: int) -> None:
    """Let go of everything on the shared file system, then watch."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    set_process_name("windlass-warden")
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, board.fd, lifeline):
            with contextlib.suppress(OSError):
                os.close(int(name))
    Warden(post, board, guard_pid, lifeline).run()


class Warden:
    """The shell around `WardenCore`; `run` returns when guard and supervisor are both dead."""

    def __init__(self, post: Post, board: Board, guard_pid: int, lifeline: int) -> None:
        self._post, self._board, self._guard_pid, self._lifeline = post, board, guard_pid, lifeline
        ruling = board.ruling()
        self._core = WardenCore(post.fencing, ruling if ruling.renewed_at else Ruling(renewed_at=since_boot()))
        self._wards = Wards(os.getsid(0), post.guard_name)
        self._poll = select.poll()
        self._poll.register(lifeline, select.POLLIN)
        self._beats = -1
        self._beater = 0
        self._beater_at = self._ran_at = since_boot()
        self._poll_s = _POLL_TURNS * post.fencing.renew_s
        self._gap_s = max(_POLL_TURNS * self._poll_s, _MIN_GAP_S)

    def run(self) -> None:
        """Watch; blocks."""
        while True:
            now = self._now()
            if not self._beater and now >= self._beater_at:
                self._start_beater()
            self._act(self._core.tick(now))
            until = min(self._core.next_at(now), now + self._poll_s)
            if not self._beater:
                until = min(until, self._beater_at)
            ready = self._poll.poll(1000.0 * max(0.0, until - since_boot()) + 1.0)
            for descriptor, _ in ready:
                if descriptor == self._lifeline:
                    self._end_all()
                    return
                self._hear()

    def _now(self) -> float:
        """The time, for the core; a warden that looks seldom enough did not run, and its beater neither."""
        now = since_boot()
        if now > self._ran_at + self._gap_s:
            self._core.resumed(now)
        self._ran_at = now
        return now

    def _hear(self) -> None:
        """Take what the beater told; at its end, start another after a while."""
        raw = os.read(self._beats, _READ_BYTES)
        if not raw:
            self._poll.unregister(self._beats)
            os.close(self._beats)
            os.waitpid(self._beater, 0)
            self._beater, self._beater_at = 0, since_boot() + self._post.fencing.renew_s
        for began, is_superseded in unpack_beats(raw):
            now = self._now()
            self._act(self._core.superseded(now) if is_superseded else self._core.beat(began, now))

    def _act(self, actions: list[Action]) -> None:
        """Say what is so, then make it so."""
        self._rule()
        for action in actions:
            if action is Action.STOP:
                self._wards.stop(self._roots())
            elif action is Action.CONTINUE:
                self._wards.let_go(self._roots())
            elif self._wards.below(self._roots()):
                self._core.killed(since_boot())
                self._rule()
                self._wards.kill(self._roots())

    def _rule(self) -> None:
        self._board.rule(self._core.ruling)

    def _roots(self) -> list[int]:
        """Below whom the user's processes are; a guard that died left its orphans to strangers."""
        supervisor = self._board.supervisor()
        return [self._guard_pid, supervisor] if os.getppid() == self._guard_pid else [supervisor]

    def _start_beater(self) -> None:
        self._beats, out = os.pipe()
        warden = os.getpid()
        self._beater = os.fork()
        if self._beater == 0:
            try:
                _become_beater(self._post, warden, out)
            finally:
                os._exit(1)
        os.close(out)
        self._poll.register(self._beats, select.POLLIN)

    def _end_all(self) -> None:
        """Nobody watches the user's processes any more, and nobody would continue those that are stopped."""
        self._wards.kill(self._roots())
        sweep(TOKEN_NAME, [f"{self._post.token}.{self._post.rank}"], {os.getpid(), self._beater})
        send_signal(self._beater, signal.SIGKILL)


def _become_beater(post: Post, warden: int, out: int) -> None:
    die_with_parent(signal.SIGKILL)
    if os.getppid() != warden:
        return
    set_process_name("windlass-beater")
    Beater(post.job_folder, post.rank, post.incarnation, post.fencing.renew_s, out).run()
